"""Where the embedded model lies."""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder in transformers' layout: weights, tokenizer, chat template and configurations."""
