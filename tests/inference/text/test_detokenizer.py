"""Detokenization: the pieces of single ids, and streams of ids as text."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from lmtool.core.types import TokenizerInfo
from lmtool.inference.text.detokenizer import WindowDetokenizer, pieces, spelling
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer

STORIES = load_tokenizer(str(Path(__file__).parent.parent.parent / "data/stories260K"))
STORIES_LIBRARY = Tokenizer.from_file(str(Path(__file__).parent.parent.parent / "data/stories260K/tokenizer.json"))


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
    table = pieces(STORIES_LIBRARY, special={0, 1, 2})
    assert table is not None
    assert (table[1], table[3 + 0xF0], table[407], table.lead) == ("", b"\xf0", " upon", 1)


@pytest.mark.parametrize("token_id", [-1, 512, 2**32, 2**70])
def test_unknown_ids(token_id: int) -> None:
    """Ids outside the vocabulary add nothing and are not kept."""
    table = pieces(STORIES_LIBRARY, special=())
    assert table is not None
    assert table[token_id] == ""
    assert not table
    assert spelling(STORIES_LIBRARY, token_id) is None


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


BYTE_ZERO = 3
"""In stories260K, byte b has id 3 + b."""
STORY_IDS = st.lists(st.one_of(st.integers(0, 511), st.integers(BYTE_ZERO, BYTE_ZERO + 255)), max_size=24)
TEXTS = st.text(
    st.one_of(st.sampled_from(list(" \n\tabcé你🙂\u0301\u200d🏳\ufe0f🌈�")), st.characters(exclude_categories=["Cs"])),
    max_size=30,
)


def streamed(tokenizer: TextTokenizer, ids: list[int], context: list[int] | tuple[int, ...] = ()) -> list[str]:
    """Return what each push, and the finish, of a stream shows."""
    detokenizer = tokenizer.detokenizer(context)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


def suffix(whole: str, before: str) -> str:
    """Return what a stream must show: the whole text less what its context already shows."""
    same = [a == b for a, b in zip(whole, before, strict=False)]
    return whole[[*same, False].index(False) :]


def story_bytes(text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return [BYTE_ZERO + byte for byte in data]


class TestByteLevel:
    """GPT-2's manner: ids stand for bytes."""

    @given(data=st.data())
    def test_stream_is_the_rest_of_the_whole_text(self, byte_level: TextTokenizer, data: st.DataObject) -> None:
        """Pushes and finish together are what `tokenizers` decodes of context and stream, less the context's text."""
        ids = st.lists(st.integers(0, byte_level.vocab_size + 3), max_size=24)
        context, new = data.draw(ids), data.draw(ids)
        decode = byte_level._tokenizer.decode
        assert "".join(streamed(byte_level, new, context)) == suffix(decode(context + new), decode(context))

    @given(text=TEXTS, cut=st.integers(0, 60))
    def test_text_survives(self, byte_level: TextTokenizer, text: str, cut: int) -> None:
        """Any text comes back from its ids, wherever a context ends."""
        ids = byte_level.encode(text)
        before = byte_level.decode(ids[:cut])
        assert "".join(streamed(byte_level, ids[cut:], ids[:cut])) == suffix(text, before)
        assert byte_level.decode(ids) == text

    @given(text=TEXTS)
    def test_no_half_characters(self, byte_level: TextTokenizer, text: str) -> None:
        """What a push shows is the next characters of the text, never a part of one."""
        shown = ""
        for piece in streamed(byte_level, byte_level.encode(text)):
            shown += piece
            assert text.startswith(shown)

    def test_character_comes_with_its_last_id(self, byte_level: TextTokenizer) -> None:
        """A character of several ids is shown by the last of them, and a special id between them changes nothing."""
        ids = [byte_level.encode(chr(0x20))[0]] + [byte_level._tokenizer.token_to_id(c) for c in "ðŁĻĤ"]
        assert streamed(byte_level, ids) == [" ", "", "", "", "🙂", ""]
        assert streamed(byte_level, [*ids[:3], 0, *ids[3:]]) == [" ", "", "", "", "", "🙂", ""]

    def test_open_tail(self, byte_level: TextTokenizer) -> None:
        """A character that is open at the stream's end becomes U+FFFD, unless the context alone left it open."""
        ids = [byte_level._tokenizer.token_to_id(c) for c in "ðŁĻ"]
        assert streamed(byte_level, ids) == ["", "", "", "\ufffd"]
        assert streamed(byte_level, [], context=ids) == [""]

    def test_added_tokens(self, byte_level: TextTokenizer) -> None:
        """Added tokens show as they read, special ones and unknown ids not at all."""
        ids = byte_level.encode("x<a tool><|user|>y")
        assert "".join(streamed(byte_level, [*ids, -1, 10**6, 2**40])) == "x<a tool>y"


class TestByteFallback:
    """SentencePiece's manner: ids stand for texts, and for bytes where no text fits."""

    @given(context=STORY_IDS, new=STORY_IDS)
    @example(context=[1], new=[BYTE_ZERO + 0x20, 410, 403])
    @example(context=[410], new=[410, 410])
    @example(context=[BYTE_ZERO + 0xC2], new=[334])
    @example(context=[410, 410, 410, 410, 410], new=[410])
    def test_stream_is_the_rest_of_the_whole_text(self, context: list[int], new: list[int]) -> None:
        """Pushes and finish together are the text of context and stream, less the context's text."""
        assert "".join(streamed(STORIES, new, context)) == suffix(reference(context + new), reference(context))

    @given(ids=STORY_IDS)
    def test_equals_the_library_where_bytes_are_sound(self, ids: list[int]) -> None:
        """Where all bytes are UTF-8, the text is what `tokenizers` decodes."""
        library = STORIES_LIBRARY.decode(ids)
        if "\ufffd" not in library:
            assert STORIES.decode(ids) == library

    @given(data=st.binary(min_size=1, max_size=6).map(lambda data: bytes(byte | 0x80 for byte in data)))
    @example(data=b"\xf0\x9f\x99")
    def test_equals_the_library_where_no_byte_is_sound(self, data: bytes) -> None:
        """A run without any sound character is one U+FFFD for each byte, as in `tokenizers`."""
        ids = story_bytes(data)
        if set(sound(data)) == {"\ufffd"}:
            assert STORIES.decode(ids) == STORIES_LIBRARY.decode(ids) == "\ufffd" * len(data)

    @given(text=TEXTS.filter(lambda text: "▁" not in text), cut=st.integers(1, 60))
    def test_text_survives(self, text: str, cut: int) -> None:
        """Any text comes back from its ids, wherever a context ends."""
        ids = STORIES.encode(text)
        assert STORIES.decode(ids) == text
        assert "".join(streamed(STORIES, ids[cut:], ids[:cut])) == suffix(text, STORIES.decode(ids[:cut]))

    def test_sound_characters_outlive_bad_bytes(self) -> None:
        """A complete character is shown at once and stays; each byte that is no UTF-8 becomes one U+FFFD."""
        ids = story_bytes("é".encode() + b"\xf0\x9f" + b"\n")
        assert streamed(STORIES, ids) == ["", "é", "", "", "\ufffd\ufffd\n", ""]

    def test_bad_bytes_are_not_hoarded(self) -> None:
        """However long a run of bad bytes is, no more than three wait."""
        detokenizer = STORIES.detokenizer()
        shown = sum(len(detokenizer.push(BYTE_ZERO + 0x80)) for _ in range(1000))
        assert shown >= 997
        assert shown + len(detokenizer.finish()) == 1000

    def test_context_decides_over_a_leading_blank(self, stories: TextTokenizer) -> None:
        """The blank in front is dropped at a text's start only: ids behind a context keep it."""
        once = stories.encode("Once", special=False)
        assert "".join(streamed(stories, once, context=[1])) == "Once"
        assert "".join(streamed(stories, once, context=[1, *once])) == " Once"

    def test_real_stories(self, stories: TextTokenizer) -> None:
        """On real streams, the prompt's text and the streamed text are the reference's whole text."""
        file = Path(__file__).parent.parent.parent / "data/stories260K/reference.json"
        kept_blanks = 0
        for output in json.loads(file.read_text())["outputs"]:
            shown = "".join(streamed(stories, output["new_ids"], output["prompt_ids"]))
            assert stories.decode(output["prompt_ids"]) + shown == output["text"]
            kept_blanks += shown == " " + output["new_text"]
        assert kept_blanks


def reference(ids: list[int]) -> str:
    """Decode as SentencePiece does: runs of byte ids give their sound characters and a U+FFFD for each other byte."""
    text = ""
    visible = [i for i in ids if i > 2]
    for is_byte, run in groupby(visible, key=lambda i: i < BYTE_ZERO + 256):
        if is_byte:
            text += sound(bytes(i - BYTE_ZERO for i in run))
        else:
            text += "".join(STORIES_LIBRARY.id_to_token(i).replace("▁", " ") for i in run)
    return text.removeprefix(" ")


def sound(data: bytes) -> str:
    text = ""
    while data:
        for length in range(1, 5):
            try:
                text += data[:length].decode()
            except UnicodeDecodeError:
                continue
            break
        else:
            text, length = text + "\ufffd", 1
        data = data[length:]
    return text


def other_tokenizer(decoder: object, words: list[str]) -> TextTokenizer:
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    if decoder is not None:
        library.decoder = decoder
    library.add_special_tokens(["[SEP]"])
    return TextTokenizer(library, TokenizerInfo("other", "0"), named_tokens={})


OTHERS = {
    "wordpiece": other_tokenizer(decoders.WordPiece(cleanup=True), ["run", "##ning", ".", "do", "not", "##s", "'"]),
    "metaspace": other_tokenizer(decoders.Metaspace(), ["▁", "▁a", "b", "▁▁c", "é"]),
    "bpe suffix": other_tokenizer(decoders.BPEDecoder(suffix="</w>"), ["lo", "w</w>", "</w>", "er</w>"]),
    "none": other_tokenizer(None, ["a", "b", "c"]),
    "ctc": other_tokenizer(decoders.CTC(pad_token="<pad>", word_delimiter_token="|"), ["a", "b", "<pad>", "|"]),
    "unknown chain": other_tokenizer(
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), ["a", "▁b", "<0xC3>x", "é"]
    ),
}


class TestOtherDecoders:
    """Decoders whose ids depend on their neighbours."""

    @pytest.mark.parametrize("name", OTHERS)
    @given(data=st.data())
    def test_stream_is_the_rest_of_the_whole_text(self, name: str, data: st.DataObject) -> None:
        """Pushes and finish together are what `tokenizers` decodes of context and stream, less the context's text."""
        tokenizer = OTHERS[name]
        ids = st.lists(st.integers(0, tokenizer.vocab_size), max_size=16)
        context, new = data.draw(ids), data.draw(ids)
        decode = tokenizer._tokenizer.decode
        assert "".join(streamed(tokenizer, new, context)) == suffix(decode(context + new), decode(context))

    def test_bytes_of_an_unknown_chain(self) -> None:
        """Where a chain that is not known joins bytes, a character still comes whole, and bad bytes do not pile up."""
        words = [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer = other_tokenizer(decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), words)
        assert isinstance(tokenizer.detokenizer(), WindowDetokenizer)
        ids = [1 + byte for byte in "é🙂".encode()]
        assert streamed(tokenizer, ids) == ["", "é", "", "", "", "🙂", ""]
        assert set(streamed(tokenizer, ids[2:4])[-1]) == {"\ufffd"}
        detokenizer = tokenizer.detokenizer()
        for _ in range(200):
            detokenizer.push(1 + 0x80)
        assert len(detokenizer._window) <= 8
