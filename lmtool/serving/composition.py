"""Composition root: connects engines, tokenizers, guides, workers and pools."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable
from weakref import WeakSet

from lmtool.core.errors import FileError, LmtoolError, ModelNotFoundError, ResourceError
from lmtool.core.interfaces import Counted
from lmtool.inference.backends.registry import DEFAULT, BackendConfig, find
from lmtool.inference.engine.random_model import is_random
from lmtool.inference.text.workers import TRUSTED
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.config import ModelsConfig
from lmtool.serving.hub_cache import located
from lmtool.serving.model_names import AUTO, GGUF, OnDemand, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import tokenizers

    from lmtool.core.interfaces import GuideCompiler, LoadedModel
    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.core.types import LoadProgress, ModelInfo
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.gateway.pools.pools import Pools
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.model_manager import ModelManager
    from lmtool.inference.guide.compiler import MatcherCompiler
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.net.telemetry.telemetry import Telemetry
    from lmtool.serving.config import ServiceConfig
    from lmtool.trace.server_tap import ServerTap

Models: TypeAlias = "ModelManager | Balancer"
"""Models of a server: in this process, or in workers."""

HTTP_PACKAGES = ("starlette", "uvicorn", "httptools")
SERVE_PACKAGES = ("torch", "transformers", "safetensors", *HTTP_PACKAGES, "llguidance", "google.protobuf")
INSTALL_SERVE = "pip install 'lmtool[serve]'"
GATEWAY_PACKAGES = (*HTTP_PACKAGES, "yaml", "python_multipart")
INSTALL_GATEWAY = "pip install 'lmtool[gateway]'"

_log = logging.getLogger(__name__)


@runtime_checkable
class Guided(Counted, Protocol):
    """An engine that supports constrained streams."""

    def set_guide_compiler(self, guides: GuideCompiler) -> None:
        """Accept constraints from now on, compiled by `guides`; the model owns the compiler."""


@runtime_checkable
class Losable(Protocol):
    """A model that may be lost while in memory, such as when its device fails."""

    def on_lost(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` once, in any thread, with the reason the model was lost."""


@dataclass
class Loader:
    """Loads models with their tokenizers, and tracks the engines in memory."""

    config: EngineConfig
    backend: BackendConfig = field(default_factory=BackendConfig)
    engines: WeakSet[Counted] = field(default_factory=WeakSet)
    guides: WeakSet[MatcherCompiler] = field(default_factory=WeakSet)
    """The constraint compilers of these engines."""
    models: ModelsConfig = field(default_factory=ModelsConfig)
    """Sources of the main model's tokenizer and chat template."""
    on_lost: Callable[[Exception], None] | None = None  # called in any thread with the reason a model was lost
    sampling_defaults: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Sampling defaults of loaded models, by source."""

    def load(self, source: str, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        """A running model that takes text, or only token ids without a tokenizer. Blocks; call it from a thread.

        source: a local folder, a GGUF file or a hub name; with the prefix `HUB`, a hub name sent by a client. Raises
        `ModelLoadError`, `ResourceError` or `OutOfMemoryError`.
        """
        with located(source, self.config.revision) as place:
            return self._load(place, on_progress)

    def _load(self, source: str, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        from lmtool.inference.guide.answer_check import JsonAnswerCheck
        from lmtool.inference.guide.compiler import MatcherCompiler
        from lmtool.inference.text.text_model import TextModel

        with _no_collection(), ThreadPoolExecutor(1, thread_name_prefix="lmtool-tokenizer") as pool:
            reading = pool.submit(tokenizer_reader(self.models, source, self.config.revision, self._converted))
            asked = self.models.tokenizer_source(source)[0] != source
            # Detected at once here; transformers would retry an unreachable hub for half a minute.
            missing = not Path(source).exists() and not is_random(source)
            absent = missing and isinstance(reading.exception(), ModelNotFoundError)
            if absent or (asked and reading.exception() is not None):
                reading.result()  # the requested tokenizer, or the whole model, is not available
            defaults = partial(self.models.sampling_defaults, source, self.config.revision)
            defaults()  # report errors before anything is loaded

            def report(progress: LoadProgress) -> None:
                if progress.phase == "loading":  # success and failure are reported by returning or raising
                    on_progress(progress)

            engine = find(self.backend.backend)(source, self.config, self.backend.options, report)
            if isinstance(engine, Counted):
                self.engines.add(engine)
            if isinstance(engine, Losable) and self.on_lost is not None:
                engine.on_lost(self.on_lost)
            self.sampling_defaults[source] = defaults()  # again: a hub model's file is in the cache now
            tokenizer = _tokenizer_or_none(source, reading.result)
        if tokenizer is None:
            return engine
        if isinstance(engine, Guided):
            info = engine.info_now
            assert info.vocab_size is not None
            guides = MatcherCompiler(tokenizer.to_json(), info.vocab_size, info.eos_token_ids)
            self.guides.add(guides)
            engine.set_guide_compiler(guides)
        return TextModel(engine, tokenizer, JsonAnswerCheck())

    def _converted(self, source: str) -> tokenizers.Tokenizer:
        """Tokenizer converted by transformers, for a model without tokenizer.json."""
        from lmtool.inference.engine.weights import convert_tokenizer

        return convert_tokenizer(source, self.config.revision)

    def tokenizer_of_workers(self, info: ModelInfo, limits: PromptLimits | None) -> TextTokenizer | None:
        """Tokenizer of a model of the workers, which HTTP needs to spell tokens; None if it is not on this machine.

        limits: those of the model. Reads files.
        """
        own = [model.source for model in self.models.served() if info.model in model.names]
        main = None if self.models.model == AUTO else self.models.model
        source = own[0] if own else served(main).source
        try:
            tokenizer = tokenizer_reader(self.models, source, self.config.revision)()
        except LmtoolError:
            return None  # a model from elsewhere: requests that need its tokenizer are refused
        if info.tokenizer is None or info.tokenizer.sha256 != tokenizer.info.sha256:
            return None
        if limits is not None:
            tokenizer.limits = limits.with_text_limit(tokenizer.longest_token_bytes)
        return tokenizer

    def streams(self) -> tuple[int, int]:
        """Numbers of running and waiting streams in all engines."""
        now = [engine.info_now for engine in self.engines]
        return sum(info.running or 0 for info in now), sum(info.waiting or 0 for info in now)


def tokenizer_reader(
    models: ModelsConfig,
    source: str,
    revision: str | None,
    convert: Callable[[str], tokenizers.Tokenizer] | None = None,
) -> Callable[[], TextTokenizer]:
    """A function that reads the tokenizer of the model at `source`: the configured one, else the model's own.

    A tokenizer.json next to a GGUF file takes precedence over the file's metadata. revision: of a hub model. convert,
    and errors: see `load_tokenizer`.
    """
    from lmtool.inference.text.tokenizer import load_tokenizer

    where, template = models.tokenizer_source(source)
    if source == str(MODEL_DIR):
        TRUSTED.add(json.loads((MODEL_DIR / "tokenizer_config.json").read_bytes())["chat_template"])
    parser = models.reasoning_parser_of(source)
    own = where == source
    if own and source.endswith(GGUF):
        if not Path(source).with_name("tokenizer.json").is_file():
            return partial(_within, source, template, parser)
        where = str(Path(source).parent)
    if is_random(where):
        return _no_tokenizer
    wanted = revision if own else None
    return partial(load_tokenizer, where, convert, revision=wanted, chat_template=template, reasoning_parser=parser)


def _no_tokenizer() -> TextTokenizer:
    raise FileError("a random model has no tokenizer", "take another model's:  --tokenizer MODEL")


def _within(source: str, template: str | None, parser: str | None) -> TextTokenizer:
    """Tokenizer from a GGUF file's metadata. template: replaces the file's own."""
    from lmtool.inference.engine.gguf.tokenizer import read_tokenizer
    from lmtool.inference.text.tokenizer import make_tokenizer

    found = read_tokenizer(Path(source))
    own = found.chat_template if template is None else template
    return make_tokenizer(found.tokenizer, Path(source).stem, found.tokenizer.to_str(), found.named_tokens, own, parser)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection, which takes a fifth of the import time of torch and transformers and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tokenizer_or_none(source: str, result: Callable[[], TextTokenizer]) -> TextTokenizer | None:
    """The tokenizer, or None: a model without one is served with token ids over LMTP."""
    try:
        return result()
    except LmtoolError as error:
        _log.warning("%s is served with token ids only: %s", source, error.message)
        return None


def models_of(config: ServiceConfig, loader: Loader) -> Models:
    """Models of a server, none loaded yet: in this process, or those of its workers."""
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.inference.engine.model_manager import ModelBudget, ModelManager

    if config.workers:
        expected = () if config.balances else config.models.entries()
        return Balancer(
            config.workers, config.access.key, expected=expected, load_tokenizer=loader.tokenizer_of_workers
        )
    on_demand = None
    if config.models.model == AUTO:
        on_demand = OnDemand(config.models.allow_download, config.engine.revision)
    return ModelManager(
        loader.load,
        config.models.served(),
        on_demand=on_demand,
        budget=ModelBudget(config.models.max_loaded, config.models.memory_bytes),
        idle_seconds=config.models.idle_unload,
        sampling_defaults=loader.sampling_defaults.__getitem__,
    )


def pools_of(config: ServiceConfig, models: Models | None, tap: ServerTap, telemetry: Telemetry) -> Pools | None:
    """Pools of a server, which include its models; None without pools. Raises `FileError`.

    telemetry: observes streams of providers.
    """
    if config.pools is None:
        return None
    from lmtool.gateway.pools.pools import OwnModels, Pools
    from lmtool.protocol.lmtp.endpoint import parse

    own = None if models is None else OwnModels(models, models, models)
    local = None if config.pools.local is None else parse(config.pools.local, config.pools.key)
    return Pools(config.pools.gateway, own, local, tap.upstream(), telemetry)


def check_device(backend: BackendConfig, engine: EngineConfig) -> None:
    """Raise `ResourceError` for a requested device that does not exist. Imports torch; call it from a thread."""
    if backend.backend == DEFAULT and engine.device.startswith("cuda"):
        from lmtool.inference.engine.weights import find_device

        find_device(engine.device)


def need_serve_packages() -> None:
    """Raise `ResourceError` with the install line when a package for serving is missing."""
    need_packages(SERVE_PACKAGES)


def need_gateway_packages() -> None:
    """Raise `ResourceError` with the install line when a package for pools is missing."""
    need_packages(GATEWAY_PACKAGES, "a gateway", INSTALL_GATEWAY)


def need_packages(names: Sequence[str], what: str = "serving a model", install: str = INSTALL_SERVE) -> None:
    """Raise `ResourceError` with the install line when one of these packages is missing."""
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise ResourceError(f"{what} needs {', '.join(missing)}", f"install it:  {install}")


def is_installed(name: str) -> bool:
    """True if a package or module is installed. Imports at most its parent package."""
    package, _, module = name.partition(".")
    return importlib.util.find_spec(package) is not None and (not module or importlib.util.find_spec(name) is not None)
