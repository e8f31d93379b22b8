"""Backends by name: built-in and those of other packages."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lmtool.core.errors import ResourceError, UsageError
from lmtool.net.subprocesses.foreign_python import probe
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.core.interfaces import LoadedModel
    from lmtool.core.types import LoadProgress
    from lmtool.inference.engine.config import EngineConfig

GROUP = "lmtool.backends"
"""Entry point group for backends of other packages."""
DEFAULT = "transformers"
PANEL = "Models"

Load: TypeAlias = "Callable[[str, EngineConfig, Mapping[str, str], Callable[[LoadProgress], None]], LoadedModel]"
"""Loads a model; called in a thread with its source, the configuration, the backend's options and a listener.

Returns a running `interfaces.LoadedModel` that takes token ids; serving adds text. Raises `LmtoolError`.
"""

OWN = {
    "random": "lmtool.inference.backends.random:load_random",
    "llamacpp": "lmtool.inference.backends.llamacpp:load_llamacpp",
}
"""Built-in backends in addition to `transformers`, which is lmtool's own engine."""
VLLM = "vllm"
"""Runs in worker processes with their own Python environment, see `serving.replicas`."""
VLLM_INSTALL = "pip install vllm in an environment of its own, then:  --backend vllm --backend-python ENV/bin/python"
VLLM_MODULES = (
    VLLM,
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "msgspec",
    "starlette",
    "jinja2",
    "llguidance",
    "jsonschema",
)
"""Modules that a worker imports; vLLM itself requires the others."""
OLDEST_PYTHON = (3, 11)
"""Oldest Python version that lmtool supports."""


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Settings of the backend that runs the models."""

    backend: str = option(
        DEFAULT, "What runs it: transformers (our engine), llamacpp, vllm, random.", PANEL, metavar="NAME"
    )
    backend_python: str | None = option(None, "Python of the environment that has vLLM.", PANEL, metavar="PATH")
    backend_option: tuple[str, ...] = option((), "For the backend (repeatable).", PANEL, metavar="NAME=VALUE")

    @property
    def options(self) -> dict[str, str]:
        """The options by name, with `python` for `backend_python`. Raises `UsageError` for one without a `=`."""
        options = {} if self.backend_python is None else {"python": self.backend_python}
        for word in self.backend_option:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise UsageError(f"--backend-option {word!r} is no NAME=VALUE", "such as --backend-option seed=1")
            options[name] = value
        return options

    def check(self) -> None:
        """Raise `UsageError` or `ResourceError` for settings that cannot work, before anything is loaded."""
        if self.options and self.backend == DEFAULT:
            number_options(DEFAULT, self.options, {})
        if self.backend == VLLM:
            check_vllm_python(self.backend_python)
        elif self.backend != DEFAULT:
            find(self.backend)


def check_vllm_python(python: str | None) -> None:
    """Raise `ResourceError` unless this Python can run vLLM workers."""
    if python is None:
        raise ResourceError("--backend vllm needs the Python of an environment that has vLLM", VLLM_INSTALL)
    environment = probe(python, VLLM_MODULES, VLLM_INSTALL)
    if environment.version < OLDEST_PYTHON:
        version, oldest = (".".join(map(str, numbers)) for numbers in (environment.version, OLDEST_PYTHON))
        raise ResourceError(
            f"--backend-python {python!r} is Python {version}, and workers need {oldest} or newer", VLLM_INSTALL
        )
    if VLLM in environment.missing:
        raise ResourceError(f"there is no vLLM in the environment of --backend-python {python!r}", VLLM_INSTALL)
    if environment.missing:
        names = " ".join(environment.missing)
        raise ResourceError(
            f"vLLM's environment lacks what vLLM itself requires: {names}",
            f"install it:  {python} -m pip install {names}",
        )


def find(name: str) -> Load:
    """The loader of a backend. Raises `UsageError` for an unknown one, `ResourceError` for one that is broken."""
    if name == DEFAULT:
        return _transformers
    if name in OWN:
        module, _, function = OWN[name].partition(":")
        load: Load = getattr(importlib.import_module(module), function)
        return load
    from importlib.metadata import entry_points

    installed = entry_points(group=GROUP)
    if name not in installed.names:
        known = ", ".join([DEFAULT, VLLM, *OWN, *sorted(installed.names)])
        raise UsageError(f"there is no backend {name!r}", f"known: {known}", f"packages add more: entry points {GROUP}")
    try:
        load = installed[name].load()
    except (ImportError, AttributeError) as error:
        raise ResourceError(f"the backend {name!r} cannot be imported: {error}", "install its package again") from None
    return load


def _transformers(
    model: str, config: EngineConfig, options: Mapping[str, str], on_progress: Callable[[LoadProgress], None]
) -> LoadedModel:
    """Our engine over transformers' models: the default backend."""
    from lmtool.inference.engine.engine_loader import load_engine

    number_options(DEFAULT, options, {})
    return load_engine(model, config, on_progress)


def number_options(
    backend: str, options: Mapping[str, str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """A backend's own options, all of them numbers. ranges: least and greatest value of each option it knows.

    Raises `UsageError` for an unknown option, or a value out of range.
    """
    numbers = {}
    for name, text in options.items():
        if name not in ranges:
            hint = f"known: {', '.join(ranges)}" if ranges else "leave it out"
            raise UsageError(f"the backend {backend!r} has no option {name!r}", hint)
        low, high = ranges[name]
        try:
            numbers[name] = float(text)
        except ValueError:
            numbers[name] = math.nan
        if not low <= numbers[name] <= high:
            raise UsageError(
                f"option {name} of the backend {backend!r} is {text!r}; expected a number from {low:g} to {high:g}"
            )
    return numbers


def option_value(text: str) -> Any:
    """A value of `--backend-option` for vLLM: parsed as JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
