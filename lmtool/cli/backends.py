"""What can run a model: the backends by name, this program's own and those that other packages bring."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeAlias

from lmtool.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from lmtool.engine.config import EngineConfig
    from lmtool.interfaces import LoadedModel
    from lmtool.types import LoadProgress

GROUP = "lmtool.backends"
"""Entry points of this group are backends, by their names."""
DEFAULT = "transformers"

Load: TypeAlias = "Callable[[str, EngineConfig, Mapping[str, str], Callable[[LoadProgress], None]], LoadedModel]"
"""Loads a model: called in a thread with its source, the settings, the backend's own options, and a listener.

Returns a running `interfaces.LoadedModel` that takes token ids; text is laid over it. Raises `LmtoolError`.
"""

OWN = {
    "random": "lmtool.engine.random_backend:load_random",
    "llamacpp": "lmtool.engine.llamacpp_backend:load_llamacpp",
}
"""Besides `transformers`, which is what the engine does by itself."""
VLLM = "vllm"
"""Runs in workers of its own environment, never in this process: see `serving.replicas`."""


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Which backend runs the models. Fields match the flags of `lmtool serve` one to one."""

    backend: str = DEFAULT
    backend_python: str | None = None
    """The Python of the environment that a backend needs for itself."""
    backend_option: tuple[str, ...] = ()
    """`NAME=VALUE` each, for the backend as they are."""

    @property
    def options(self) -> dict[str, str]:
        """The options by name, with `python` for `backend_python`. Raises `UsageError` for one without a `=`."""
        found = {} if self.backend_python is None else {"python": self.backend_python}
        for word in self.backend_option:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise UsageError(f"--backend-option {word!r} is no NAME=VALUE", "such as --backend-option seed=1")
            found[name] = value
        return found

    def check(self) -> None:
        """Raise `UsageError` or `ResourceError` for what cannot work, before anything is loaded or opened."""
        if self.options and self.backend == DEFAULT:
            refuse_options(DEFAULT, self.options)
        if self.backend == VLLM:
            self._check_python()
        elif self.backend != DEFAULT:
            find(self.backend)

    def _check_python(self) -> None:
        from lmtool.cli.vllm.environment import INSTALL, check

        python = self.backend_python
        if python is None:
            raise ResourceError("--backend vllm needs the Python of an environment that has vLLM", INSTALL)
        check(python)


def find(name: str) -> Load:
    """The loader of a backend. Raises `UsageError` for an unknown one, `ResourceError` for one that is broken."""
    if name == DEFAULT:
        return _transformers
    if name in OWN:
        module, _, function = OWN[name].partition(":")
        found: Load = getattr(importlib.import_module(module), function)
        return found
    brought = entry_points(group=GROUP)
    if name not in brought.names:
        known = ", ".join([DEFAULT, VLLM, *OWN, *sorted(brought.names)])
        raise UsageError(f"there is no backend {name!r}", f"known: {known}", f"packages add more: entry points {GROUP}")
    try:
        loaded: Load = brought[name].load()
    except (ImportError, AttributeError) as error:
        raise ResourceError(f"the backend {name!r} cannot be imported: {error}", "install its package again") from None
    return loaded


def _transformers(
    model: str, config: EngineConfig, options: Mapping[str, str], on_progress: Callable[[LoadProgress], None]
) -> LoadedModel:
    """The engine over transformers' models, as it is without a backend being named."""
    from lmtool.engine.backends import load_engine

    refuse_options(DEFAULT, options)
    return load_engine(model, config, on_progress)


def refuse_options(name: str, options: Mapping[str, str], known: Sequence[str] = ()) -> None:
    """Raise `UsageError` for an option that the backend does not have."""
    for option in options:
        if option not in known:
            hint = f"known: {', '.join(known)}" if known else "leave it out"
            raise UsageError(f"the backend {name!r} has no option {option!r}", hint)
