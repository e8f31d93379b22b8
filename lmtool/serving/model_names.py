"""Model names: the source of a name, the names that clients may use, models loaded on demand; sizes in bytes."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import ModelLoadError, UnknownModelError, UsageError
from lmtool.inference.engine.random_model import PREFIX, SHAPES, is_random
from lmtool.inference.tiny.path import EMBEDDED_NAME, source_of
from lmtool.net.access.caller import is_admin
from lmtool.serving.hub_cache import HUB, cached_snapshot, is_hub_name, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.inference.engine.model_manager import ServedModel

AUTO = "auto"
"""Instead of a model's name: load any model that a client names."""
GGUF = ".gguf"
"""Suffix of llama.cpp's files; a tokenizer.json next to one takes precedence over its own tokenizer."""
SMALL_BYTES = 32_000_000
"""Size of the weights on disk below which one CPU thread is faster than several."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MAX_SIZE = 1 << 60


def served(model: str | None, aliases: Sequence[str] = ()) -> ServedModel:
    """The source of a model typed on the command line, and the names that clients may use.

    The listed name of a folder is its last part, not its path, which clients may also send. Raises `ModelLoadError` for
    neither a folder nor a possible name, `UsageError` for an unknown random model or a name that is not UTF-8.
    """
    if model in {None, EMBEDDED_NAME}:
        return _named(source_of(model), aliases, EMBEDDED_NAME)
    assert model is not None
    model = str(model)  # Python programs pass a path, too
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
    """Size of a model's weight files in bytes; None if they are not on this machine.

    source: a folder, a GGUF file, or a hub name, looked up in the hub's cache.
    """
    place = Path(source)
    if place.suffix == GGUF and place.is_file():
        return place.stat().st_size
    folder = place if place.is_dir() else cached_snapshot(str(source))
    return None if folder is None else sum(file.stat().st_size for file in weight_files(folder)) or None


def with_aliases(models: Sequence[ServedModel], aliases: Sequence[str]) -> list[ServedModel]:
    """The models with aliases, `NAME=MODEL` each. Raises `UsageError` for an unknown model or a name used twice."""
    named = list(models)
    for word in aliases:
        alias, equals, target = word.partition("=")
        if not equals or not alias or not target or not alias.isprintable():
            raise UsageError(f"--alias {word!r} is not NAME=MODEL", "such as --alias small=lmtool-tiny")
        at = _index(named, target, f"--alias {word}")
        if any(alias in model.names for model in named[:at] + named[at + 1 :]):
            raise UsageError(f"two models have the name {alias!r}", f"take another name in --alias {word}")
        model = named[at]
        if alias not in model.names:
            named[at] = replace(model, names=(*model.names, alias), aliases=(*model.aliases, alias))
    return named


def with_pins(models: Sequence[ServedModel], pins: Sequence[str]) -> list[ServedModel]:
    """The models, with these names pinned. Raises `UsageError` for an unknown name."""
    pinned = {_index(models, name, f"--pin {name}") for name in pins}
    return [replace(model, pinned=at in pinned) for at, model in enumerate(models)]


def _index(models: Sequence[ServedModel], name: str, option: str) -> int:
    for at, model in enumerate(models):
        if name in model.names:
            return at
    known = ", ".join(model.names[0] for model in models)
    raise UsageError(
        f"{option} names a model that is not served", f"served: {known}" if known else "add --allow-model NAME"
    )


def threads_for(*models: str | None) -> int | None:
    """Default number of CPU threads for these models: 1 if all are very small, else None (torch's choice).

    Splitting very small matrices takes longer than computing them, especially on a busy machine (measured: 4.3 instead
    of 6.1 s of CPU until the included model was ready).
    """
    return 1 if all(map(_is_small, models)) else None


def _is_small(model: str | None) -> bool:
    if model == AUTO:
        return False
    place = Path(served(model).source)
    files = [place] if place.suffix == GGUF and place.is_file() else place.glob("*.safetensors")
    return 0 < sum(file.stat().st_size for file in files) < SMALL_BYTES


class OnDemand:
    """Models that clients of `serve auto` may name besides those served by name; reads files, no network.

    `ModelManager` calls it with the name that a client sent.
    """

    def __init__(self, allow_download: Sequence[str] = (), revision: str | None = None) -> None:
        """allow_download: patterns, as of file names, of hub models that may be downloaded. revision: of hub models."""
        self._allow_download = allow_download
        self._revision = revision

    def __call__(self, name: str) -> ServedModel:
        """The model of this name. Raises `UnknownModelError` for a model that may not be loaded.

        The name is never looked up as a path, so that answers do not reveal which files exist. A model in the hub's
        cache is loaded from there without downloads. All other names, and all names with a key that may not load
        models, get the same error.
        """
        from lmtool.inference.engine.model_manager import ServedModel

        if name == EMBEDDED_NAME and is_admin():
            return served(name)
        if is_hub_name(name) and is_admin():
            if (folder := cached_snapshot(name, self._revision)) is not None:
                return ServedModel(str(folder), (name,), size_bytes=weight_bytes(folder))
            if any(fnmatchcase(name, pattern) for pattern in self._allow_download):
                return ServedModel(HUB + name, (name,))
        raise UnknownModelError(
            f"model {name!r:.200} is not served here",
            "models are served by the names that /v1/models lists; the operator adds others with --allow-model, "
            "--allow-download PATTERN, or  admin = true  of a key",
        )


def parse_bytes(text: str, option: str) -> int:
    """The number of bytes: `kB`, `MB`, `GB`, `TB` are powers of 1000, `KiB`, `MiB`, `GiB`, `TiB` of 1024.

    option: named in the `UsageError` for anything else or less than one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None:
        base = 1024 if match[3] else 1000
        size = int(float(match[1]) * base ** _POWERS[(match[2] or "").lower()]) if len(match[1]) <= 20 else 0
        if 1 <= size <= _MAX_SIZE:
            return size
    raise UsageError(f"{option} is {text!r:.60}; expected a size in bytes", "such as 4GB, 512MiB or 1000000000")
