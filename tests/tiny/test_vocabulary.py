"""The tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from lmtool.tiny import vocabulary
from lmtool.tiny.document import SPECIAL_TOKENS
from lmtool.tiny.path import MODEL_DIR

SHIPPED = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    """Every text survives the way to token ids and back, whatever its characters."""
    assert SHIPPED.decode(SHIPPED.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_come_first() -> None:
    """<|endoftext|>, <|im_start|> and <|im_end|> are 0, 1 and 2."""
    assert [SHIPPED.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert SHIPPED.get_vocab_size() == vocabulary.SIZE


def test_digits_stand_alone() -> None:
    """Every digit is a token of its own."""
    assert SHIPPED.encode("12*730").tokens == ["1", "2", "*", "7", "3", "0"]


@pytest.mark.parametrize("text", ["Hello there", "2+2", "naïve 漢字 🙂\n\ttab"])
def test_transformers_reads_it_the_same(text: str) -> None:
    """AutoTokenizer loads the folder without a network and gives the same ids."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    ids = tokenizer(text)["input_ids"]
    assert ids == SHIPPED.encode(text).ids
    assert tokenizer.decode(ids) == text


def test_learning_is_repeatable(tmp_path) -> None:
    """The same seed learns the same tokenizer, and saving it keeps it."""
    first, again = (vocabulary.learn(1, texts=100, size=400) for _ in range(2))
    assert first.to_str() == again.to_str()
    vocabulary.save(first, tmp_path)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == first.to_str()
