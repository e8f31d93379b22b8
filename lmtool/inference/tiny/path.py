"""Name and folder of the included model."""

from pathlib import Path

EMBEDDED_NAME = "lmtool-tiny"
"""The name of the model that comes with lmtool, for `serve` and for clients."""
MODEL_DIR: Path = Path(__file__).parent / EMBEDDED_NAME
"""Folder in transformers' layout: weights, tokenizer, chat template and configurations."""


def source_of(name: str | None) -> str:
    """Folder of the included model for its name or None; another name, or a folder, unchanged."""
    return str(MODEL_DIR) if name in {None, EMBEDDED_NAME} else str(name)
