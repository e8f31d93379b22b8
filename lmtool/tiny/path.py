"""Where the embedded model is."""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "lmtool-tiny"
"""Folder in transformers' layout: weights, tokenizer, chat template and configurations."""
