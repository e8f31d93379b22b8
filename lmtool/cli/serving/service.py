"""A server's life, without a word to anyone: open the port, load the model, serve, drain, close."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.access.policy import AccessPolicy
from lmtool.cli.backends import BackendConfig
from lmtool.cli.serving.health import Health, routes
from lmtool.cli.wiring import AUTO, Loader, ModelsConfig, host, listed, served
from lmtool.engine.config import EngineConfig
from lmtool.errors import LmtoolError, UsageError
from lmtool.lmtp.balancing.balancer import Balancer
from lmtool.lmtp.config import ServerConfig
from lmtool.lmtp.request_log import RequestLog, silent
from lmtool.prompt_limits import limits_of
from lmtool.types import Usage

if TYPE_CHECKING:
    import socket
    from typing import TextIO

    import uvicorn

    from lmtool.engine.host import ModelHost
    from lmtool.http_api.server import OpenAIServer
    from lmtool.interfaces import TokenModel
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.trace.server_tap import ServerTap
    from lmtool.types import LoadProgress, ModelInfo, TokenOutput


LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclass(frozen=True, slots=True)
class CarrierConfig:
    """How HTTP is carried. Fields match the flags of `lmtool serve` one to one."""

    root_path: str = ""
    """Where a proxy in front puts this server."""
    uvicorn_log_level: str = "error"

    def check(self) -> None:
        """Raise `UsageError` for what cannot be."""
        if self.uvicorn_log_level not in LEVELS:
            raise UsageError(f"--uvicorn-log-level is {self.uvicorn_log_level!r}", f"one of {', '.join(LEVELS)}")
        if self.root_path and not self.root_path.startswith("/"):
            raise UsageError(f"--root-path is {self.root_path!r}; expected a path that begins with /", "such as /llm")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Everything that decides what a server serves and how."""

    models: ModelsConfig = field(default_factory=ModelsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    """Which requests are let in."""
    workers: tuple[str, ...] = field(default=(), repr=False)
    """Endpoints of servers that do the work, in place of models in this process; they are shown the same key."""
    foreign: bool = False
    """Whether what they serve is theirs to say; else it is `models`."""
    carrier: CarrierConfig = field(default_factory=CarrierConfig)


class Service:
    """The models of one process behind any number of transports; belongs to one event loop.

    Call `listen` or `talk`, wait for `ready`; later `drain` (or not), then `close`.
    """

    def __init__(
        self, config: ServiceConfig, log: Callable[[RequestLog], None] = silent, tap: ServerTap | None = None
    ) -> None:
        """Plug everything together; nothing is loaded or opened yet.

        log: gets each request that ended. tap: is shown what clients and the server say.
        """
        from lmtool.lmtp.server import LmtpServer

        self._config = config
        self._log = log
        self._tap = tap
        self._loader = Loader(config.engine, config.backend, models=config.models)
        if config.workers:
            expected = () if config.foreign else listed(config.models)
            self._host: Balancer | ModelHost = Balancer(config.workers, config.access.key, expected=expected)
        else:
            self._host = host(config.models, self._loader)
        self._server = LmtpServer(
            self._host, config=config.server, progress=self._host, catalogue=self._host, log=self._ended, tap=tap
        )
        self._carrier: uvicorn.Server | None = None
        self._http: OpenAIServer | None = None
        self._wire: TextIO | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.health = Health(model=None if config.foreign else config.models.main)

    @property
    def model(self) -> TokenModel:
        """What is served, for whoever is in this process."""
        return self._host

    @property
    def streams(self) -> int:
        """Streams of clients that have not ended, and HTTP requests that are being answered."""
        return self._server.streams + (0 if self._http is None else self._http.running)

    def listen(self, sockets: list[socket.socket]) -> None:
        """Answer on sockets that are bound and listening, from now on; requests wait while the model loads."""
        self._carrier = carrier(self._application(), self._config.access, self._config.server, self._config.carrier)
        self._tasks.append(asyncio.create_task(self._carrier.serve(sockets)))

    def talk(self) -> None:
        """Answer on this process's stdin and stdout, which nothing else may use from now on."""
        self._tasks.append(asyncio.create_task(self._talk()))

    async def ready(self, on_progress: Callable[[LoadProgress], None]) -> ModelInfo | None:
        """Load the main model; return its description, None where models are loaded on demand. Raises the load's error.

        on_progress: called in the event loop.
        """
        if self.health.model is None and not self._config.workers:
            self.health.state = "ready"
            return None

        def listener(progress: LoadProgress) -> None:
            self.health.progress = progress
            on_progress(progress)

        unsubscribe = self._host.subscribe(self.health.model, listener)
        try:
            if self.health.model is None and isinstance(self._host, Balancer):
                self.health.model = await self._host.main()
            if self.health.model is None:
                self.health.state = "ready"
                return None
            info = await self._host.info(self.health.model)
        except LmtoolError as error:
            self.health.state, self.health.message = "failed", error.message
            raise
        finally:
            unsubscribe()
        if self._config.workers:
            await asyncio.to_thread(self._know_tokenizer, info)
        self.health.state, self.health.model = "ready", info.model
        return info

    def _know_tokenizer(self, info: ModelInfo) -> None:
        """Read the tokenizer of the model that workers serve, if it is at hand here: HTTP speaks text."""
        from lmtool.text.tokenizer import load_tokenizer

        source = served(self._config.models.model).source
        where, template = self._config.models.reads(source)
        try:
            tokenizer = load_tokenizer(where, revision=self._config.engine.revision, chat_template=template)
        except LmtoolError:
            return  # a model from elsewhere: what needs its tokenizer is refused by name
        if info.tokenizer is not None and info.tokenizer.sha256 == tokenizer.info.sha256:
            assert isinstance(self._host, Balancer), "it has workers"
            self._host.longest_token_bytes = tokenizer.longest_token_bytes
            tokenizer.limits = limits_of(None, self._host.limits)
            self._loader.known_tokenizers[source] = tokenizer

    async def ended(self) -> None:
        """Return when a transport ended by itself: stdin was closed. Raises what made it end."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()

    async def drain(self, seconds: float) -> bool:
        """Take no new work, let running streams end, close every connection; whether all ended within `seconds`."""
        self.health.state = "draining"
        draining = [self._server.drain(seconds)]
        if self._http is not None:
            draining.append(self._http.drain(seconds))
        return all(await asyncio.gather(*draining))

    async def close(self) -> None:
        """Close everything; streams still running end with an error. Waits for a load under way, which cannot stop."""
        await self.drain(0)  # says why to streams that still run; uvicorn would cut them off
        if self._carrier is not None:
            self._carrier.should_exit = True
        else:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._host.close()

    def _ended(self, entry: RequestLog) -> None:
        self.health.count(entry)
        self._log(entry)

    def _answered(self, last: TokenOutput | None, tokens: int) -> None:
        """Count a stream of an HTTP request; there is no line for it in the log."""
        if last is None:
            self.health.count(RequestLog(0, "null", "GENERATE", output_tokens=tokens, end="left"))
            return
        used = last.usage or Usage(0, tokens)
        self.health.count(
            RequestLog(
                0,
                "null",
                "GENERATE",
                prompt_tokens=used.prompt_tokens,
                output_tokens=used.completion_tokens,
                end=last.finish_reason,
                error=last.error,
                error_code=last.error_code,
                cached_tokens=used.cached_tokens,
            )
        )

    def _application(self) -> Any:
        from starlette.applications import Starlette

        from lmtool.http_api.generation import form_named
        from lmtool.http_api.server import ApiConfig, OpenAIServer

        form = form_named(self._config.models.tool_call_parser)
        api = ApiConfig(form, self._answered, self._config.engine.max_logprobs)
        self._http = OpenAIServer(self._host, self._tokenizer, api, catalogue=self._host)
        handlers = [*self._server.routes(), *routes(self.health, self._numbers), *self._http.routes()]
        application = Starlette(routes=handlers)
        return application if self._tap is None else self._tap.around(application, leave_out=("/health", "/metrics"))

    def _tokenizer(self, name: str | None) -> TextTokenizer | None:
        """The tokenizer of the model that is served under this name."""
        models = self._config.models
        main = None if models.model == AUTO else served(models.model, models.served_model_name)
        source = main if main is not None and (name is None or name in main.names) else served(name)
        return self._loader.known_tokenizers.get(source.source)

    def _numbers(self) -> dict[str, Any]:
        counter = self._host if isinstance(self._host, Balancer) else self._loader
        running, waiting = counter.streams()
        numbers: dict[str, Any] = {"connections": self._server.connections, "running": running, "waiting": waiting}
        numbers["guides"] = self._loader.guide_counts()
        if isinstance(self._host, Balancer):
            numbers["workers_up"] = len(self._host.up)
        return numbers

    async def _talk(self) -> None:
        from lmtool.lmtp.stdio import open_stdio

        self._wire, printed = _wire(), sys.stdout
        sys.stdout = self._wire
        try:
            reader, writer = await open_stdio(self._config.server.max_frame_bytes)
        finally:
            sys.stdout = printed
        await self._server.run_stdio(reader, writer)


def _wire() -> TextIO:
    """This process's stdout for the protocol alone: whatever any library prints from now on goes to stderr."""
    wire = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return wire


def carrier(
    application: Any, access: AccessPolicy, config: ServerConfig, how: CarrierConfig | None = None
) -> uvicorn.Server:
    """The server that carries HTTP and WebSocket through the door to an application, whatever routes it has.

    Leaves signals and logs to the program.
    """
    import uvicorn

    from lmtool.access.asgi import Door
    from lmtool.http_api.refusals import refused
    from lmtool.lmtp.server import uvicorn_options

    class Carrier(uvicorn.Server):
        def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override] # as ours is
            return contextlib.nullcontext()

    how = how or CarrierConfig()
    options = uvicorn_options(config) | {"log_level": how.uvicorn_log_level}
    guarded = Door(application, access, refused)
    placed = _below(how.root_path, guarded) if how.root_path else guarded
    return Carrier(uvicorn.Config(placed, **options, lifespan="off", log_config=None, access_log=False))


def _below(path: str, application: Any) -> Any:
    """The application where a proxy puts it, whether the proxy takes the path away or leaves it."""

    async def placed(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, "root_path": path}, receive, send)

    return placed
