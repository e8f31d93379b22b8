"""Where the embedded model lies, and what lies there."""

from __future__ import annotations

import json

from lmtool.tiny.path import MODEL_DIR

LIMIT = 6_000_000
"""Bytes that the whole model may take: it travels with every installation."""


def test_model_is_small() -> None:
    """The embedded model stays under 6 MB in all."""
    assert sum(file.stat().st_size for file in MODEL_DIR.iterdir()) < LIMIT


def test_model_is_complete() -> None:
    """Weights, tokenizer, chat template and configurations are there, in transformers' layout."""
    names = {file.name for file in MODEL_DIR.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_generation_ends_at_both_special_tokens() -> None:
    """A reply ends at <|im_end|>, a plain text at <|endoftext|>."""
    assert json.loads((MODEL_DIR / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


def test_weights_are_for_float32() -> None:
    """Stored as float16 to be small, computed with as float32: so the configuration says."""
    assert json.loads((MODEL_DIR / "config.json").read_text())["dtype"] == "float32"
