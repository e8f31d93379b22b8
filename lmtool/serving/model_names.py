"""Model names: the folder or checkpoint that a name stands for, and the names that clients may use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import ModelLoadError, UsageError
from lmtool.inference.engine.random_model import PREFIX, SHAPES, is_random
from lmtool.inference.tiny.path import EMBEDDED_NAME, source_of
from lmtool.serving.hub_cache import cached_snapshot, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.inference.engine.model_manager import ServedModel

AUTO = "auto"
"""In place of a model's name: load whatever a client names."""
GGUF = ".gguf"
"""Suffix of llama.cpp's files; a tokenizer.json beside one comes before the tokenizer in it."""
SMALL_BYTES = 32_000_000
"""Size of the weights on disk below which one CPU thread is faster than several."""


def served(model: str | None, aliases: Sequence[str] = ()) -> ServedModel:
    """The source of a model as typed on the command line, and the names that clients may use.

    A folder shows its last part: its path is nobody's business, but may be asked for. Raises `ModelLoadError` for what
    is neither a folder nor a possible name, `UsageError` for an unknown random model or a name that is not UTF-8.
    """
    if model in {None, EMBEDDED_NAME}:
        return _named(source_of(model), aliases, EMBEDDED_NAME)
    assert model is not None
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        path = folder.resolve()
        return _named(str(folder), aliases, path.name, model, str(path))
    if folder.suffix == GGUF and folder.is_file():
        return _named(str(folder), aliases, folder.stem, model)
    if model.startswith(PREFIX):
        if not is_random(model):
            raise UsageError(f"there is no {model!r}", f"known: {', '.join(PREFIX + name for name in SHAPES)}")
        return _named(model, aliases, model)
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or folder.exists() or not model:
        raise ModelLoadError(
            f"there is no model folder {model!r}",
            "give the folder that holds config.json, or a name on the Hugging Face hub such as gpt2",
            "the model that comes with lmtool needs no name:  lmtool serve",
        )
    return _named(model, aliases, model)


def _named(source: str, aliases: Sequence[str], *own: str) -> ServedModel:
    from lmtool.inference.engine.model_manager import ServedModel

    for name in (*aliases, *own):
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise UsageError(
                f"the name of the model {name!r} is not valid UTF-8, so no client can ask for it",
                "rename it (a link to it does not help)",
            )
    return ServedModel(source, tuple(dict.fromkeys((*aliases, *own))), tuple(dict.fromkeys(aliases))[1:])


def weight_bytes(source: str | Path) -> int | None:
    """Bytes of a model's files with weights; None where they are not on this machine.

    source: a folder, a file of llama.cpp, or a hub name, looked up in the hub's cache.
    """
    place = Path(source)
    if place.suffix == GGUF and place.is_file():
        return place.stat().st_size
    folder = place if place.is_dir() else cached_snapshot(str(source))
    return None if folder is None else sum(file.stat().st_size for file in weight_files(folder)) or None


def with_aliases(models: Sequence[ServedModel], aliases: Sequence[str]) -> list[ServedModel]:
    """The models with further names, `NAME=MODEL` each. Raises `UsageError` for what names none of them, or two."""
    named = list(models)
    for word in aliases:
        alias, equals, target = word.partition("=")
        if not equals or not alias or not target or not alias.isprintable():
            raise UsageError(f"--alias {word!r} is no NAME=MODEL", "such as --alias small=lmtool-tiny")
        at = _index(named, target, f"--alias {word}")
        if any(alias in model.names for model in named[:at] + named[at + 1 :]):
            raise UsageError(f"two models have the name {alias!r}", f"take another name in --alias {word}")
        model = named[at]
        if alias not in model.names:
            named[at] = replace(model, names=(*model.names, alias), aliases=(*model.aliases, alias))
    return named


def with_pins(models: Sequence[ServedModel], pins: Sequence[str]) -> list[ServedModel]:
    """The models, those of these names pinned. Raises `UsageError` for a name that none of them has."""
    pinned = {_index(models, name, f"--pin {name}") for name in pins}
    return [replace(model, pinned=at in pinned) for at, model in enumerate(models)]


def _index(models: Sequence[ServedModel], name: str, option: str) -> int:
    for at, model in enumerate(models):
        if name in model.names:
            return at
    known = ", ".join(model.names[0] for model in models)
    raise UsageError(
        f"{option} names no model that is served", f"served: {known}" if known else "add --allow-model NAME"
    )


def threads_for(*models: str | None) -> int | None:
    """Default number of CPU threads for these models: 1 where all are very small, else None (torch's choice).

    Their matrices are too small to share out: handing them over takes longer than computing them, above all on a busy
    machine (measured: 4.3 instead of 6.1 s of CPU until the embedded model was ready).
    """
    return 1 if all(map(_is_small, models)) else None


def _is_small(model: str | None) -> bool:
    if model == AUTO:
        return False
    place = Path(served(model).source)
    files = [place] if place.suffix == GGUF and place.is_file() else place.glob("*.safetensors")
    return 0 < sum(file.stat().st_size for file in files) < SMALL_BYTES
