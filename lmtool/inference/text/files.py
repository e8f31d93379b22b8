"""Locations of a tokenizer's files: a local folder or the cache of the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError, ModelLoadError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files read from a model's folder; only the first is required."""
_MOST_BYTES = 128 << 20
"""Largest size of such a file; published ones have up to 40 million bytes."""


def locate(name_or_folder: str, revision: str | None = None) -> tuple[str, Path]:
    """Return the tokenizer's short name and the folder with its files. May download them.

    revision: branch, tag or commit on the hub; None: its main branch. Folders win over hub names; a path to a
    tokenizer.json means its folder. What the hub's cache has is used without asking the hub.

    Raises `ModelNotFoundError` when there is no such folder, the hub does not know the model, or it cannot be reached
    and nothing of the model is in its cache; `ModelLoadError` when only the tokenizer is missing.
    """
    if (folder := _folder(name_or_folder)) is not None:
        path = folder.resolve()
        return _hub_name(path) or path.name, folder
    if not name_or_folder or name_or_folder.startswith(("/", ".", "~")) or name_or_folder.count("/") > 1:
        raise ModelNotFoundError(
            f"no such folder: {name_or_folder!r}",
            "give the folder that holds tokenizer.json, or a name on the Hugging Face hub such as gpt2",
        )
    cached = snapshot(name_or_folder, revision)
    if cached is not None and not (cached / FILES[0]).is_file():
        cached = None
    if cached is not None and (cached / FILES[1]).is_file():
        return name_or_folder, cached
    return name_or_folder, download(name_or_folder, revision, cached)


def _hub_name(folder: Path) -> str | None:
    """Name of the hub model if a folder is its downloaded snapshot, else None."""
    repository = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/")


def _folder(name: str) -> Path | None:
    """Return the local folder for a name, or None; names may come from untrusted clients."""
    try:
        path = Path(name).expanduser()
        if path.name == FILES[0] and path.is_file():
            path = path.parent
        return path if name and path.is_dir() else None
    except (OSError, RuntimeError):  # too long a name, or the home of nobody known
        return None


def read_text(path: Path) -> str:
    """A file's text, line ends as they are. Raises `FileError` when it cannot be read, is too long or is not UTF-8."""
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise FileError(f"{path} has {size} bytes; expected {_MOST_BYTES} at most", "fetch it again")
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}", "check its path and rights, or fetch it again") from error


def snapshot(name: str, revision: str | None = None) -> Path | None:
    """Return the cache folder of a model revision, complete or not; None if no download began.

    The cache's layout is documented (huggingface_hub, "Understand caching"); importing that library takes ten times
    as long as everything else that a client does before it sends its first frame.
    """
    repository = _repository(name)
    reference = repository / "refs" / (revision or "main")
    commit = read_text(reference).strip() if reference.is_file() else revision
    return repository / "snapshots" / commit if commit else None


def hub_cache() -> Path:
    """Cache folder of the hub library, from its environment variables."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _repository(name: str) -> Path:
    """Return the cache folder of a model, which may not exist."""
    return hub_cache() / ("models--" + name.replace("/", "--"))


def download(
    name: str, revision: str | None = None, cached: Path | None = None, patterns: Sequence[str] = FILES
) -> Path:
    """Return the folder with these files of a hub model, or `cached` if the hub is unreachable.

    Raises `ModelNotFoundError` or `ModelLoadError`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{name!r} is neither a folder here nor a possible name on the Hugging Face hub", "check the spelling"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"the Hugging Face hub has no revision {revision!r} of {name!r}", "check the branch, tag or commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the Hugging Face hub has no model {name!r}, or you may not see it",
            "check the spelling, or give a local folder",
            "for a private or gated model set HF_TOKEN",
        ) from error
    except OSError as error:  # errors of HTTP, of the connection and of the disk are all OSErrors in huggingface_hub
        if cached is not None:
            return cached
        if _repository(name).is_dir():
            raise ModelLoadError(
                f"the local cache has {name!r} without its tokenizer, and the Hugging Face hub cannot be reached",
                "download it once while online",
            ) from error
        raise ModelNotFoundError(
            f"{name!r} is no folder here, it is not in the local cache, and the Hugging Face hub cannot be reached",
            "give a local folder, or download the model once while online",
            "if HF_HUB_OFFLINE is set, unset it",
        ) from error
