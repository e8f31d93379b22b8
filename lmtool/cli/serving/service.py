"""A server's life, without a word to anyone: open the port, load the model, serve, drain, close."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.cli.backends import BackendConfig
from lmtool.cli.serving.health import Health, routes
from lmtool.cli.wiring import AUTO, Loader, ModelsConfig, host, served
from lmtool.engine.config import EngineConfig
from lmtool.errors import LmtoolError
from lmtool.lmtp.balancing.balancer import Balancer
from lmtool.lmtp.config import ServerConfig
from lmtool.lmtp.request_log import silent

if TYPE_CHECKING:
    import socket
    from typing import TextIO

    import uvicorn

    from lmtool.lmtp.connection import Tap
    from lmtool.lmtp.request_log import RequestLog
    from lmtool.ports import TokenModel
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.types import LoadProgress, ModelInfo


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Everything that decides what a server serves and how."""

    models: ModelsConfig = field(default_factory=ModelsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    api_key: str | None = field(default=None, repr=False)
    """What clients of the OpenAI API must show; None: nothing."""
    workers: tuple[str, ...] = ()
    """Endpoints of servers that do the work, in place of models in this process."""


class Service:
    """The models of one process behind any number of transports; belongs to one event loop.

    Call `listen` or `talk`, wait for `ready`; later `drain` (or not), then `close`.
    """

    def __init__(
        self, config: ServiceConfig, log: Callable[[RequestLog], None] = silent, tap: Tap | None = None
    ) -> None:
        """Plug everything together; nothing is loaded or opened yet.

        log: gets each request that ended. tap: is shown what goes over LMTP connections.
        """
        from lmtool.lmtp.server import LmtpServer

        self._config = config
        self._log = log
        self._loader = Loader(config.engine, config.backend)
        self._host = Balancer(config.workers) if config.workers else host(config.models, self._loader)
        self._server = LmtpServer(self._host, config=config.server, progress=self._host, log=self._ended, tap=tap)
        self._carrier: uvicorn.Server | None = None
        self._wire: TextIO | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.health = Health(model=None if config.workers else config.models.main)

    @property
    def model(self) -> TokenModel:
        """What is served, for whoever is in this process."""
        return self._host

    @property
    def streams(self) -> int:
        """Streams of clients that have not ended."""
        return self._server.streams

    def listen(self, sockets: list[socket.socket]) -> None:
        """Answer on sockets that are bound and listening, from now on; requests wait while the model loads."""
        self._carrier = carrier(self._application(), self._config.server)
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
            info = await self._host.info(self.health.model)
        except LmtoolError as error:
            self.health.state, self.health.message = "failed", error.message
            raise
        finally:
            unsubscribe()
        self.health.state, self.health.model = "ready", info.model
        return info

    async def ended(self) -> None:
        """Return when a transport ended by itself: stdin was closed. Raises what made it end."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()

    async def drain(self, seconds: float) -> bool:
        """Take no new work, let running streams end, close every connection; whether all ended within `seconds`."""
        self.health.state = "draining"
        return await self._server.drain(seconds)

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

    def _application(self) -> Any:
        from starlette.applications import Starlette

        from lmtool.openai_api.server import OpenAIServer

        openai = OpenAIServer(self._host, self._tokenizer, self._config.api_key)
        return Starlette(routes=[*self._server.routes(), *routes(self.health, self._numbers), *openai.routes()])

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


def carrier(application: Any, config: ServerConfig) -> uvicorn.Server:
    """The server that carries HTTP and WebSocket to an ASGI application; leaves signals and logs to the program."""
    import uvicorn

    from lmtool.lmtp.server import uvicorn_options

    class Carrier(uvicorn.Server):
        def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override] # as ours is
            return contextlib.nullcontext()

    options = uvicorn_options(config)
    return Carrier(
        uvicorn.Config(application, **options, lifespan="off", log_config=None, log_level="error", access_log=False)
    )
