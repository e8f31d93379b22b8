"""Tokenizers in the files of older checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lmtool.core.errors import FileError
from lmtool.inference.engine.weights import convert_tokenizer
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A GPT-2 folder with vocab.json and merges.txt."""
    letters = ["a", "b", "c", "\u0120"]
    merges = [("a", "b"), ("\u0120", "ab")]
    words = [*letters, *("".join(pair) for pair in merges), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    return tmp_path


def test_vocab_and_merges(older: Path) -> None:
    """Ids are those of the vocabulary, merged as the merges say; text comes back."""
    tokenizer = load_tokenizer(str(older), convert_tokenizer)
    assert tokenizer.encode("ab ab c") == [4, 5, 3, 2]
    assert tokenizer.decode([4, 5, 3, 2]) == "ab ab c"


def test_todays_format_is_the_same() -> None:
    """What is made of a folder with a tokenizer.json is that very tokenizer."""
    text = "Once upon a time, there was 1 fox!"
    assert (
        convert_tokenizer(str(MODEL_DIR)).encode(text).ids
        == Tokenizer.from_file(f"{MODEL_DIR}/tokenizer.json").encode(text).ids
    )


def test_nothing_to_make_it_of(tmp_path: Path) -> None:
    """A folder without any tokenizer is an error that names it and says what to do."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(FileError, match=r"neither tokenizer[.]json nor older files") as raised:
        convert_tokenizer(str(tmp_path))
    assert "save_pretrained" in raised.value.hints[0]
