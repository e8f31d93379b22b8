"""What one id adds to a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from lmtool.inference.text.pieces import pieces, spelling

STORIES = Path(__file__).parent.parent.parent / "data/stories260K/tokenizer.json"


def words(decoder: object, *names: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.decoder = decoder
    return tokenizer


def test_byte_level_alphabet_is_the_librarys() -> None:
    """Each byte's character in a byte-level vocabulary gives that byte back."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    table = pieces(words(decoders.ByteLevel(), *alphabet), special=())
    assert sorted(table[i] for i in range(256)) == [bytes([byte]) for byte in range(256)]
    for i in range(256):
        assert Tokenizer.decode(table._tokenizer, [i]) == table[i].decode(errors="replace")


def test_byte_fallback() -> None:
    """Byte tokens are bytes, others text with blanks, special ids nothing; one leading blank is dropped."""
    table = pieces(Tokenizer.from_file(str(STORIES)), special={0, 1, 2})
    assert table is not None
    assert (table[1], table[3 + 0xF0], table[407], table.lead) == ("", b"\xf0", " upon", 1)


@pytest.mark.parametrize("token_id", [-1, 512, 2**32, 2**70])
def test_unknown_ids(token_id: int) -> None:
    """Ids outside the vocabulary add nothing and are not kept."""
    table = pieces(Tokenizer.from_file(str(STORIES)), special=())
    assert table is not None
    assert table[token_id] == ""
    assert not table
    assert spelling(Tokenizer.from_file(str(STORIES)), token_id) is None


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace(Regex("▁"), " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("x", 1, 0)]
        ),
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]
        ),
    ],
)
def test_other_decoders_have_no_table(decoder: object) -> None:
    """A decoder that is not exactly one of the known chains gets no table."""
    tokenizer = words(decoder, "a") if decoder is not None else Tokenizer(models.BPE())
    assert pieces(tokenizer, special=()) is None
