"""The composition root: engines, tokenizers, guides and protocols are plugged together here."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable
from weakref import WeakSet

from lmtool.core.errors import LmtoolError, ModelNotFoundError, ResourceError
from lmtool.core.interfaces import Counted, ModelControl
from lmtool.core.types import Usage
from lmtool.inference.backends.registry import DEFAULT, BackendConfig, find
from lmtool.inference.engine.random_model import is_random
from lmtool.serving.config import ModelsConfig
from lmtool.serving.hub_cache import located
from lmtool.serving.model_loss import hear_of_loss
from lmtool.serving.model_names import AUTO, served
from lmtool.serving.tokenizer_source import tokenizer_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import tokenizers

    from lmtool.core.interfaces import Catalogue, Face, GuideCompiler, LoadedModel, TokenModel
    from lmtool.core.prompt_limits import PromptLimits
    from lmtool.core.types import LoadProgress, ModelInfo
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.gateway.pools.pools import Pools
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.model_manager import ModelManager
    from lmtool.inference.guide.compiler import MatcherCompiler
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.net.access.asgi import Write
    from lmtool.net.access.keyed_models import KeyedModels
    from lmtool.net.telemetry.request_log import RequestLog
    from lmtool.net.telemetry.telemetry import Telemetry
    from lmtool.protocol.evergreen.action_tasks import ActionLog
    from lmtool.protocol.evergreen.actions import Registry
    from lmtool.protocol.evergreen.server import EvergreenServer
    from lmtool.protocol.lmtp.server import LmtpServer
    from lmtool.serving.config import ServiceConfig
    from lmtool.serving.health import Health
    from lmtool.trace.server_tap import ServerTap

Models: TypeAlias = "ModelManager | Balancer"
"""The models of a server: in this process, or behind workers."""

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
        """Accept constraints from now on, compiled by `guides`, which belongs to the model then."""


@dataclass
class Loader:
    """Loads models with their tokenizers; keeps track of the engines in memory."""

    config: EngineConfig
    backend: BackendConfig = field(default_factory=BackendConfig)
    engines: WeakSet[Counted] = field(default_factory=WeakSet)
    guides: WeakSet[MatcherCompiler] = field(default_factory=WeakSet)
    """The constraint compilers of these engines."""
    models: ModelsConfig = field(default_factory=ModelsConfig)
    """Where the main model's tokenizer and chat template come from."""
    on_lost: Callable[[Exception], None] | None = None  # called in any thread with why a model is lost
    sampling_defaults: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """By source, of the models that were loaded."""

    def load(self, source: str, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        """A running model that takes text, or token ids only where it has no tokenizer. Blocks; call it from a thread.

        source: a local folder, a GGUF file or a hub name; after `HUB` a hub name that a client has sent. Raises
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
            # Known at once here; transformers would ask a hub that cannot be reached for half a minute.
            missing = not Path(source).exists() and not is_random(source)
            absent = missing and isinstance(reading.exception(), ModelNotFoundError)
            if absent or (asked and reading.exception() is not None):
                reading.result()  # a tokenizer that was asked for, or all of the model, cannot be had
            defaults = partial(self.models.sampling_defaults, source, self.config.revision)
            defaults()  # a fault is found before anything is loaded

            def report(progress: LoadProgress) -> None:
                if progress.phase == "loading":  # success and failure are reported by returning or raising
                    on_progress(progress)

            engine = find(self.backend.backend)(source, self.config, self.backend.options, report)
            if isinstance(engine, Counted):
                self.engines.add(engine)
            hear_of_loss(engine, self.on_lost)
            self.sampling_defaults[source] = defaults()  # again: a hub model's file is in the cache from now on
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
        """The tokenizer of a model without tokenizer.json, by transformers, which the model needs anyway."""
        from lmtool.inference.engine.weights import convert_tokenizer

        return convert_tokenizer(source, self.config.revision)

    def tokenizer_of_workers(self, info: ModelInfo, limits: PromptLimits | None) -> TextTokenizer | None:
        """The tokenizer of a model that workers serve, where it is at hand here: HTTP needs it to spell tokens.

        limits: of the model. Reads files.
        """
        own = [model.source for model in self.models.served() if info.model in model.names]
        main = None if self.models.model == AUTO else self.models.model
        source = own[0] if own else served(main).source
        try:
            tokenizer = tokenizer_reader(self.models, source, self.config.revision)()
        except LmtoolError:
            return None  # a model from elsewhere: what needs its tokenizer is refused by name
        if info.tokenizer is None or info.tokenizer.sha256 != tokenizer.info.sha256:
            return None
        if limits is not None:
            tokenizer.limits = limits.with_text_limit(tokenizer.longest_token_bytes)
        return tokenizer

    def streams(self) -> tuple[int, int]:
        """Streams running and waiting in all engines."""
        now = [engine.info_now for engine in self.engines]
        return sum(info.running or 0 for info in now), sum(info.waiting or 0 for info in now)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: it takes a fifth of the time of importing torch and transformers, and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tokenizer_or_none(source: str, result: Callable[[], TextTokenizer]) -> TextTokenizer | None:
    """A model without a tokenizer can still be served: LMTP needs ids only."""
    try:
        return result()
    except LmtoolError as error:
        _log.warning("%s is served with token ids only: %s", source, error.message)
        return None


def models_of(config: ServiceConfig, loader: Loader) -> Models:
    """What a server serves: models of this process, none of them loaded yet, or those of its workers."""
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.inference.engine.model_manager import ModelBudget, ModelManager

    if config.workers:
        expected = () if config.balances else config.models.entries()
        return Balancer(
            config.workers, config.access.key, expected=expected, load_tokenizer=loader.tokenizer_of_workers
        )
    on_demand = None
    if config.models.model == AUTO:
        from lmtool.serving.on_demand import OnDemand

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
    """The pools of a server, which stand for its models as well; None where it has none. Raises `FileError`.

    telemetry: observes streams that are none of a `TokenModel`.
    """
    if config.pools is None:
        return None
    from lmtool.gateway.pools.pools import OwnModels, Pools
    from lmtool.protocol.lmtp.endpoint import parse

    own = None if models is None else OwnModels(models, models, models)
    local = None if config.pools.local is None else parse(config.pools.local, config.pools.key)
    return Pools(config.pools.gateway, own, local, tap.upstream(), telemetry)


def lmtp_server(
    models: Models | Pools,
    config: ServiceConfig,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry | None = None,
) -> LmtpServer:
    """LMTP, over a port or a pipe. log: gets each request that ended; tap: is shown every frame."""
    from lmtool.protocol.lmtp.plugs import Plugs
    from lmtool.protocol.lmtp.server import LmtpServer

    served = visible_models(models, config)
    plugs = Plugs(
        observed(served, telemetry),
        config.server,
        progress=served,
        catalogue=served,
        control=served if isinstance(served, ModelControl) else None,
        log=log,
        tap=tap,
        traffic=tap,
        everybody_watches=config.watch.watch,
    )
    return LmtpServer(plugs)


def observed(served: Models | Pools | KeyedModels, telemetry: Telemetry | None) -> TokenModel:
    """What streams are requested of. telemetry: None observes none."""
    if telemetry is None:
        return served
    from lmtool.net.telemetry.observed_model import ObservedModel

    return ObservedModel(served, served, telemetry)


def visible_models(models: Models | Pools, config: ServiceConfig) -> Models | Pools | KeyedModels:
    """What clients see of the models: with the keys of a file, what theirs allows."""
    if config.access.callers is None:
        return models
    from lmtool.net.access.keyed_models import keyed

    return keyed(models)


def faces(
    models: Models | Pools,
    config: ServiceConfig,
    health: Health,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry,
) -> list[Face]:
    """Every protocol on the port; a further one is a room of its own and a line here."""
    from lmtool.protocol.http.models import ApiConfig
    from lmtool.protocol.http.server import OpenAIServer

    api = ApiConfig(config.models.tool_call_parser, health.count_answer, config.engine.max_logprobs)
    served = visible_models(models, config)
    http = OpenAIServer(observed(served, telemetry), api, catalogue=served)
    mounted: list[Face] = [lmtp_server(models, config, log, tap, telemetry), http]
    if not config.pools_only:
        mounted.append(evergreen_server(models, config, log, tap, telemetry))
    if config.pools is not None:
        from lmtool.gateway.pools.pools import Pools
        from lmtool.gateway.pools.server import GatewayServer

        assert isinstance(models, Pools)
        mounted.insert(0, GatewayServer(models))  # its /v1/{pool}/chat before what takes any path
    return mounted


def refused_of(config: ServiceConfig) -> Write:
    """What writes the refusals of the door, in the form of each path's API."""
    if config.pools is None:
        from lmtool.protocol.http.errors import refused

        return refused
    from lmtool.gateway.pools.server import refused as refused_by_gateway

    return refused_by_gateway


def evergreen_server(
    models: Models | Pools,
    config: ServiceConfig,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry,
) -> EvergreenServer:
    """Evergreen, over WebSocket and gRPC. log: gets each action that ended; tap: is shown every message."""
    from lmtool.protocol.evergreen.actions import GROUP
    from lmtool.protocol.evergreen.config import EvergreenConfig, SessionLimits
    from lmtool.protocol.evergreen.server import EvergreenServer, Plugs

    references = None
    if config.evergreen.allow_ref:
        from lmtool.protocol.evergreen.references import allowed_references

        references = allowed_references(config.evergreen.allow_ref)
    served = visible_models(models, config)
    model = observed(served, telemetry)
    registry: Callable[[], Registry] | Registry = partial(_menu, model, served)
    if entry_points(group=GROUP):  # what is wrong with an installed action is found at the start
        registry = _menu(model, served)

    plugs = Plugs(
        registry,
        EvergreenConfig(SessionLimits(stall_limit=config.server.stall_limit)),
        references,
        log=lambda entry: log(_request_log(entry)),
        tap=tap.sessions(),
        peer_actions=config.evergreen.peer_actions,
    )
    return EvergreenServer(plugs)


def _menu(model: TokenModel, catalogue: Catalogue) -> Registry:
    from lmtool.protocol.evergreen.menu import menu

    return menu(model, catalogue)


def _request_log(entry: ActionLog) -> RequestLog:
    """An action in the terms of the server's log."""
    from lmtool.net.telemetry.request_log import RequestLog

    used = entry.usage or Usage(0, 0)
    return RequestLog(
        entry.connection,
        json.dumps(entry.output_id, ensure_ascii=False),
        entry.name,
        entry.target or None,
        used.prompt_tokens,
        used.completion_tokens,
        entry.ttft,
        entry.seconds,
        None if entry.error is not None else entry.end,
        entry.error,
        cached_tokens=used.cached_tokens,
        protocol="evergreen",
        error_code=None if entry.error is None else entry.status.name.lower(),
    )


def check_device(backend: BackendConfig, engine: EngineConfig) -> None:
    """Raise `ResourceError` for a device that was asked for and is not there. Imports torch; call it from a thread."""
    if backend.backend == DEFAULT and engine.device.startswith("cuda"):
        from lmtool.inference.engine.weights import find_device

        find_device(engine.device)


def need_serve_packages() -> None:
    """Raise `ResourceError` with the install line when a package is missing that only servers need."""
    need_packages(SERVE_PACKAGES)


def need_gateway_packages() -> None:
    """Raise `ResourceError` with the install line when a package is missing that pools need."""
    need_packages(GATEWAY_PACKAGES, "a gateway", INSTALL_GATEWAY)


def need_packages(names: Sequence[str], what: str = "serving a model", install: str = INSTALL_SERVE) -> None:
    """Raise `ResourceError` with the install line when one of these packages is missing."""
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise ResourceError(f"{what} needs {', '.join(missing)}", f"install it:  {install}")


def is_installed(name: str) -> bool:
    """Whether a package, or a module of one, is there. Imports at most the package above it."""
    package, _, module = name.partition(".")
    return importlib.util.find_spec(package) is not None and (not module or importlib.util.find_spec(name) is not None)
