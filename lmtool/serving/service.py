"""A server without its console: opens the port, loads the models, serves, drains, closes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError
from lmtool.core.types import LoadProgress
from lmtool.net.access.key_file import read_keys
from lmtool.net.telemetry.http_requests import HttpRequests
from lmtool.net.telemetry.refusals import Refusals
from lmtool.net.telemetry.telemetry import Telemetry
from lmtool.serving.composition import Loader, models_of, pools_of
from lmtool.serving.events import Reloaded
from lmtool.serving.frontends import faces, http_server, lmtp_server, refused_of
from lmtool.serving.health import UNRECORDED, Health, model_metrics, routes
from lmtool.trace.server_tap import ServerTap

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TextIO

    import uvicorn

    from lmtool.core.interfaces import Face, TokenModel
    from lmtool.core.metrics import MetricFamily
    from lmtool.core.types import ModelInfo
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.gateway.pools.pools import Pools
    from lmtool.inference.engine.model_manager import ModelManager
    from lmtool.net.access.caller import Callers
    from lmtool.net.telemetry.refusals import RefusalLog
    from lmtool.net.telemetry.request_log import HttpLog, RequestLog
    from lmtool.net.telemetry.spans import Tracer
    from lmtool.protocol.evergreen.grpc_server import GrpcServer
    from lmtool.protocol.lmtp.server import LmtpServer
    from lmtool.serving.certificate import Certificate
    from lmtool.serving.composition import Models
    from lmtool.serving.config import ServiceConfig


_log = logging.getLogger(__name__)
_SPAN_SECONDS = 5.0


class Service:
    """The models of one process, served over any number of protocols; belongs to one event loop.

    Call `listen` or `talk` and await `ready`; later optionally `drain`, then `close`.
    """

    def __init__(
        self,
        config: ServiceConfig,
        log: Callable[[RequestLog], None] = lambda _: None,
        tap: ServerTap | None = None,
        log_http: Callable[[HttpLog], None] = lambda _: None,
        tracer: Tracer | None = None,
        log_refused: Callable[[RefusalLog], None] = lambda _: None,
    ) -> None:
        """Connect all parts; nothing is loaded or opened yet.

        log: called with each finished request of protocols with connections. log_http: called with each answered HTTP
        request. tap: called with all traffic, such as to record it. tracer: starts spans; closed with the service.
        log_refused: called with rejected requests, see `Refusals`.
        """
        self._config = config
        self._log = log
        self._log_http = log_http
        self._tap = tap or ServerTap(None, time.monotonic)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loader = Loader(config.engine, config.backend, models=config.models, on_lost=self._lose)
        self._models = None if config.pools_only else models_of(config, self._loader)
        self._telemetry = Telemetry(log=log, tracer=tracer)
        self._refusals = Refusals(log_refused)
        self._pools = pools_of(config, self._models, self._tap, self._telemetry)
        self._http_server: uvicorn.Server | None = None
        self._grpc_server: GrpcServer | None = None
        self._wire: TextIO | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.faces: Sequence[Face] = ()
        """Protocols in use after `listen` or `talk`."""
        self.health = Health(model=None if config.balances else config.models.main)
        self.loaded: Sequence[ModelInfo] = ()
        """Models of this process that were loaded at the start."""
        self._failed = asyncio.Event()
        self.failure: Exception | None = None
        """Error by which a model, and with it the server, was lost; None while all are usable."""

    @property
    def model(self) -> TokenModel:
        """Models and pools, for callers in this process."""
        return self._served

    @property
    def _served(self) -> Models | Pools:
        served = self._pools or self._models
        assert served is not None, "a service has models or pools"
        return served

    @property
    def reloads(self) -> Mapping[str, Callable[[], Reloaded]]:
        """Functions that reload a file at SIGHUP, by the sentence to log when one fails.

        They raise `FileError` for an invalid file, and then change nothing.
        """
        config = self._config
        found: dict[str, Callable[[], Reloaded]] = {}
        if config.pools is not None and config.pools.file is not None:
            found["the pools stay as they were"] = self._reload_pools
        if config.access.callers is not None and config.api_keys is not None:
            found["the keys stay as they were"] = partial(_reload_keys, config.access.callers, config.api_keys)
        if config.certificate is not None:
            found["the certificate stays as it was"] = partial(_reload_certificate, config.certificate)
        return found

    def _reload_pools(self) -> Reloaded:
        from lmtool.gateway.pools.config_reader import load

        assert self._pools is not None
        assert self._config.pools is not None
        assert self._config.pools.file is not None
        self._pools.configure(load(self._config.pools.file))
        return Reloaded(pools=tuple(pool.id for pool in self._pools.pools))

    @property
    def streams(self) -> int:
        """Number of unfinished streams and HTTP requests of clients."""
        return sum(face.running for face in self.faces)

    def listen(self, sockets: list[socket.socket]) -> None:
        """Serve on bound, listening sockets from now on; requests wait while the model loads."""
        self._loop, config = asyncio.get_running_loop(), self._config
        self.faces = faces(self._served, config, self.health, self._ended, self._tap, self._telemetry)
        write, note = refused_of(config), self._refusals.note
        self._http_server = http_server(
            self._application(), config.access, config.server, config.http, write, config.certificate, note
        )
        self._tasks.append(asyncio.create_task(self._http_server.serve(sockets)))

    async def listen_grpc(self, host: str, port: int) -> int:
        """Serve Evergreen over gRPC; returns the port, chosen if 0. Call after `listen`. Raises `ResourceError`."""
        from lmtool.protocol.evergreen.grpc_server import GrpcServer
        from lmtool.protocol.evergreen.server import EvergreenServer

        sessions = next(face for face in self.faces if isinstance(face, EvergreenServer))
        self._grpc_server = GrpcServer(sessions, self._config.access, self._refusals.note)
        certificate = self._config.certificate
        pair = None if certificate is None else lambda: (certificate.key, certificate.chain)
        return await self._grpc_server.start(host, port, pair)

    def talk(self) -> None:
        """Serve on this process's stdin and stdout, which nothing else may use from now on."""
        self._loop = asyncio.get_running_loop()
        server = lmtp_server(self._served, self._config, self._ended, self._tap)
        self.faces = [server]
        self._tasks.append(asyncio.create_task(self._talk(server)))

    async def ready(self, on_progress: Callable[[LoadProgress], None]) -> ModelInfo | None:
        """Load the initial models; return the description of the first, or None if models are loaded on demand.

        on_progress: called in the event loop. Raises the load error if no model could be loaded.
        """
        self._loop = asyncio.get_running_loop()
        if self._pools is not None:
            self._pools.prepare()
        initial = [] if self._models is None else self._config.models.initial
        if self._models is None or (not initial and not self._config.workers):
            self.health.state = "ready"
            return None
        from lmtool.gateway.balance.balancer import Balancer

        try:
            if isinstance(self._models, Balancer):
                info = await self._ready_workers(self._models, on_progress)
            else:
                self.loaded = await load_together(self._models, initial, on_progress)
                info = None if self.health.model is None else self.loaded[0]
        except LmtoolError:
            self.health.state = "failed"
            raise
        self.health.state = "ready"
        if info is not None:
            self.health.model = info.model
        return info

    async def _ready_workers(self, workers: Balancer, on_progress: Callable[[LoadProgress], None]) -> ModelInfo | None:
        """Description of the workers' only or first model; None without a model."""
        unsubscribe = workers.subscribe(self.health.model, on_progress)
        try:
            if self.health.model is None:
                self.health.model = await workers.main()
            return None if self.health.model is None else await workers.info(self.health.model)
        finally:
            unsubscribe()

    def _lose(self, failure: Exception) -> None:
        """Record, from any thread, that a model and with it the server was lost."""
        assert self._loop is not None, "a model is loaded by a service that is in use"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._fail, failure)

    def _fail(self, failure: Exception) -> None:
        self.health.state = "failed"
        self.failure = failure
        self._failed.set()

    async def ended(self) -> None:
        """Return when a transport ends by itself, such as a closed stdin.

        Raises the transport's exception, or the reason a model was lost, such as `DeviceLostError`.
        """
        failed = asyncio.create_task(self._failed.wait())
        try:
            await asyncio.wait([*self._tasks, failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed.cancel()
        if self.failure is not None:
            raise self.failure
        for task in self._tasks:
            if task.done():
                task.result()

    async def drain(self, seconds: float) -> bool:
        """Refuse new work, let running streams finish, close all connections; True if all finished within `seconds`."""
        if self.failure is None:
            self.health.state = "draining"
        return all(await asyncio.gather(*(face.drain(seconds) for face in self.faces)))

    async def close(self) -> None:
        """Close everything; running streams end with an error. Waits for a running load, which cannot be stopped."""
        await self.drain(0)  # ends running streams with a reason; uvicorn would cut them off
        if self._grpc_server is not None:
            await self._grpc_server.stop()
        if self._http_server is not None:
            self._http_server.should_exit = True
        else:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._pools is not None:
            await self._pools.close()
        if self._models is not None:
            await self._models.close()
        if self._telemetry.tracer is not None:
            await _close_tracer(self._telemetry.tracer)

    def _ended(self, entry: RequestLog) -> None:
        self.health.count(entry)
        self._log(entry)

    def _metrics(self) -> Iterator[MetricFamily]:
        yield from self.health.metrics()
        yield from self._telemetry.metrics.families()
        yield self._refusals.metrics()
        for face in self.faces:
            yield from face.metrics()
        yield from model_metrics(self._models, self._loader)
        if self._config.access.callers is not None:
            yield from self._config.access.callers.metrics()

    def _application(self) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware

        own = routes(self.health, self._metrics, lambda: self._served.can_answer)
        mounted = [route for face in self.faces for route in face.routes()]
        around = [Middleware(HttpRequests, log=self._log_http, leave_out=UNRECORDED)]
        application: Any = Starlette(routes=[*own, *mounted], middleware=around)
        if self._pools is not None:
            from lmtool.gateway.pools.server import noting_attempts

            application = noting_attempts(application)
        return self._tap.around(application, leave_out=UNRECORDED)

    async def _talk(self, server: LmtpServer) -> None:
        from lmtool.protocol.lmtp.stdio import open_stdio

        self._wire, printed = _wire(), sys.stdout
        sys.stdout = self._wire
        try:
            config = self._config.server
            reader, writer = await open_stdio(config.max_frame_bytes, config.stall_limit)
        finally:
            sys.stdout = printed
        await server.run_stdio(reader, writer)


async def _close_tracer(tracer: Tracer) -> None:
    """Send the last spans within a time limit, so that an unresponsive collector does not block the exit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SPAN_SECONDS):
            await asyncio.to_thread(tracer.close)


def _reload_keys(callers: Callers, file: str) -> Reloaded:
    callers.replace(read_keys(file))
    return Reloaded(keys=tuple(key.name for key in callers.ring.keys))


def _reload_certificate(certificate: Certificate) -> Reloaded:
    certificate.renew()
    return Reloaded(certificate=certificate.certfile)


def _wire() -> TextIO:
    """Reserve stdout for the protocol; from now on library prints go to stderr."""
    wire = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return wire


async def load_together(
    models: ModelManager, names: Sequence[str], on_progress: Callable[[LoadProgress], None]
) -> list[ModelInfo]:
    """Load as many of these models as fit; return the descriptions of the loaded ones, in order.

    A failure is logged; requests for that model get the error, and retry the load after a pause. Raises the first error
    if no model can be loaded.
    """
    begun = models.preload(names)
    joint = JointProgress(begun, on_progress)
    unsubscribes = [models.subscribe(name, joint.update) for name in begun]
    try:
        results = await asyncio.gather(*(models.info(name) for name in begun), return_exceptions=True)
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()
    errors = {name: result for name, result in zip(begun, results, strict=True) if isinstance(result, BaseException)}
    for name, error in errors.items():
        if len(errors) == len(begun) or not isinstance(error, LmtoolError):
            raise error
        _log.warning("%s is not in memory: %s", name, error.sentence)
    return [result for result in results if not isinstance(result, BaseException)]


class JointProgress:
    """Progress of several loads as one: finished when the last one is, failed if all fail."""

    def __init__(self, names: Sequence[str], listener: Callable[[LoadProgress], None]) -> None:
        self._loads = {name: LoadProgress(name, "waiting") for name in names}
        self._listener = listener

    def update(self, progress: LoadProgress) -> None:
        """Update the progress of one model."""
        self._loads[progress.model] = progress
        self._listener(progress if len(self._loads) == 1 else self._joint(progress))

    def _joint(self, latest: LoadProgress) -> LoadProgress:
        loads = self._loads.values()
        going = [load.model for load in loads if load.phase not in {"ready", "failed"}]
        phases = {load.phase for load in loads}
        over = replace(latest, phase="ready" if "ready" in phases else "failed")
        joint = over if not going else replace(latest, phase="loading" if phases != {"waiting"} else "waiting")
        return replace(
            joint,
            model=", ".join(going or self._loads),
            done_bytes=sum(load.done_bytes for load in loads),
            total_bytes=sum(load.total_bytes for load in loads),
        )
