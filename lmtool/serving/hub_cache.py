"""Models in the hub's download cache on this machine, found without a network."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, rebuilt
from lmtool.inference.text.files import download, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB = "hub:"
"""Prefix of a source named by a client, which is never a local folder, even if one has that name."""
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
WEIGHTS = (".safetensors", ".bin", ".gguf")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def is_hub_name(name: str) -> bool:
    """True if this is a valid name on the hub."""
    return _NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def snapshots(repository: Path) -> Iterator[Path]:
    """The snapshot that `main` points to, then the others. repository: a `models--...` folder of a cache."""
    main = repository / "refs/main"
    revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    found = sorted(p for p in (repository / "snapshots").glob("*") if p.is_dir())
    yield from sorted(found, key=lambda p: p.name != revision)


def cached_snapshot(name: str, revision: str | None = None) -> Path | None:
    """Folder of a downloaded hub model with configuration and weights; None without one.

    revision: branch, tag or commit; None: `main`.
    """
    if not is_hub_name(name):
        return None
    folder = snapshot(name, revision)
    whole = folder is not None and (folder / "config.json").is_file() and weight_files(folder)
    return folder if whole else None


@contextmanager
def located(source: str, revision: str | None = None) -> Iterator[str]:
    """Folder or hub name of a source, for a block that loads it; errors do not show the downloaded folder.

    A name after `HUB` that is also a local file or folder is downloaded first, so that it is not mistaken for that.
    """
    name = place = source.removeprefix(HUB)
    if name != source and Path(name).exists():
        place = str(download(name, revision, patterns=_MODEL_FILES))
    try:
        yield place
    except LmtoolError as error:
        if place == name:
            raise
        raise rebuilt(type(error), error.sentence.replace(place, name), error.hints) from error


def weight_files(folder: Path) -> list[Path]:
    """Weight files in a folder, of the first format present."""
    files = [file for file in folder.glob("*") if file.is_file()]
    forms = ([file for file in files if file.suffix == suffix] for suffix in WEIGHTS)
    return next((form for form in forms if form), [])
