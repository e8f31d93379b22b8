"""Tokenizers that the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from lmtool.core.types import TokenizerInfo
from lmtool.inference.text.tokenizer import TextTokenizer, load_tokenizer

STORIES = Path(__file__).parent.parent.parent / "data/stories260K"
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "naïve café, 你好, 🙂🙃 and देवनागरी",
    "one two  three\n\n",
] * 4


def train_byte_level() -> Tokenizer:
    """Return a small byte-level BPE in GPT-2's manner: every byte has an id, some characters span several ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("<a tool>", normalized=False)])
    return tokenizer


@pytest.fixture(scope="session")
def stories() -> TextTokenizer:
    """A real SentencePiece-like tokenizer: blank in front, byte fallback, bos added."""
    return load_tokenizer(str(STORIES))


@pytest.fixture(scope="session")
def byte_level() -> TextTokenizer:
    """A byte-level BPE tokenizer in GPT-2's manner."""
    return TextTokenizer(train_byte_level(), TokenizerInfo("trained", "0"), named_tokens={"eos_token": "<|end|>"})
