"""Decides which models clients of `serve auto` may name beside those that are served by name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lmtool.core.errors import UnknownModelError
from lmtool.inference.engine.model_manager import ServedModel
from lmtool.inference.tiny.path import EMBEDDED_NAME
from lmtool.net.access.caller import is_admin
from lmtool.serving.hub_cache import HUB, cached_snapshot, is_hub_name
from lmtool.serving.model_names import served, weight_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


class OnDemand:
    """What `ModelManager` calls with a name that a client has sent; reads the file system, and no network."""

    def __init__(self, allow_download: Sequence[str] = (), revision: str | None = None) -> None:
        """allow_download: patterns, as of file names, of hub models that may be downloaded. revision: of hub models."""
        self._allow_download = allow_download
        self._revision = revision

    def __call__(self, name: str) -> ServedModel:
        """The model of this name. Raises `UnknownModelError` for one that is not to be loaded.

        The name is never looked up as a path, so that no answer tells what files there are. A model in the hub's cache
        is loaded from there, so that nothing of it is downloaded. Any other name, and every name with a key that may
        not load models, gets one and the same error.
        """
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
