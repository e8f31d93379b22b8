"""Model names: the folder or checkpoint that a name stands for, and the names that clients may use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.engine.model_slot import ServedModel

EMBEDDED_NAME = "lmtool-tiny"
"""The name of the model that comes with lmtool, for `serve` and for clients."""
AUTO = "auto"
"""In place of a model's name: load whatever a client names."""
GGUF = ".gguf"
"""Suffix of llama.cpp's files; a tokenizer.json beside one is its tokenizer."""
SMALL_BYTES = 32_000_000
"""Size of the weights on disk below which one CPU thread is faster than several."""


def served(model: str | None, aliases: Sequence[str] = ()) -> ServedModel:
    """The source of a model as typed on the command line, and the names that clients may use.

    A folder shows its last part: its path is nobody's business, but may be asked for. Raises `ModelLoadError` for what
    is neither a folder nor a possible name.
    """
    from lmtool.tiny.path import MODEL_DIR

    if model in {None, EMBEDDED_NAME}:
        return _named(str(MODEL_DIR), aliases, EMBEDDED_NAME)
    assert model is not None
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        path = folder.resolve()
        return _named(str(folder), aliases, path.name, model, str(path))
    if folder.suffix == GGUF and folder.is_file():
        return _named(str(folder), aliases, folder.stem, model)
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or folder.exists() or not model:
        raise ModelLoadError(
            f"there is no model folder {model!r}",
            "give the folder that holds config.json, or a name on the Hugging Face hub such as gpt2",
            "the model that comes with lmtool needs no name:  lmtool serve",
        )
    return _named(model, aliases, model)


def _named(source: str, aliases: Sequence[str], *own: str) -> ServedModel:
    from lmtool.engine.model_slot import ServedModel

    return ServedModel(source, tuple(dict.fromkeys((*aliases, *own))), tuple(dict.fromkeys(aliases))[1:])


def threads_for(*models: str | None) -> int | None:
    """Default number of CPU threads for these models: 1 where all are very small, else None (torch's choice).

    Their matrices are too small to share out: handing them over takes longer than computing them, above all on a busy
    machine (measured: 4.3 instead of 6.1 s of CPU until the embedded model was ready).
    """
    return 1 if all(map(_is_small, models)) else None


def _is_small(model: str | None) -> bool:
    if model == AUTO:
        return False
    weights = [file.stat().st_size for file in Path(served(model).source).glob("*.safetensors")]
    return 0 < sum(weights) < SMALL_BYTES
