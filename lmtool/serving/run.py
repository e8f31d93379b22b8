"""One run of `lmtool serve`: events, signals, recording, ready file, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shlex
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lmtool import __version__
from lmtool.core.errors import FileError, LmtoolError, ResourceError
from lmtool.net.subprocesses.exit import exit_now
from lmtool.net.subprocesses.resources import share_heaps
from lmtool.net.unix_sockets import PREFIX
from lmtool.serving.console import Console, unbuffered
from lmtool.serving.events import (
    Answered,
    Draining,
    Finished,
    Listening,
    Loading,
    LoggedWarning,
    Ready,
    Refused,
    Started,
    Stopped,
)
from lmtool.serving.interrupts import Interrupts, watch
from lmtool.serving.listening import bind, explain, listen_beside, url
from lmtool.serving.model_names import served
from lmtool.serving.service import Service

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from lmtool.core.types import LoadProgress, ModelInfo
    from lmtool.net.telemetry.refusals import RefusalLog
    from lmtool.net.telemetry.request_log import HttpLog, RequestLog
    from lmtool.serving.config import ModelsConfig, ServingConfig
    from lmtool.serving.events import Event
    from lmtool.settings.terminal import Output
    from lmtool.trace.server_tap import ServerTap

AT_ONCE = 3.0
"""Time limit for closing connections after the second Ctrl-C, in seconds."""
SWITCH_SECONDS = 0.0001
"""Seconds after which a thread running Python code yields to another one.

The engine releases the interpreter lock at each kernel call, some dozens of times per step. With Python's default of
5 ms, one busy thread (such as one that renders a long conversation) raises the 99th percentile of 16 streams' token
gaps from 9 to 200 ms; with this value, to 16 ms. Without such a thread nothing changes.
"""


async def run(config: ServingConfig, out: Output) -> None:
    """Serve until a signal, the end of stdin, or an error. Raises `LmtoolError`.

    A signal while the model loads exits the process at once with 128 + its number, because a load cannot be stopped.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    share_heaps()
    console = make_console(config, out)
    ready_file = ReadyFile(config.life.ready_file)
    try:
        with watch() as interrupts, emit_warnings(console.emit, debug=config.debug):
            await _Run(config, out, console, interrupts, ready_file).all()
    finally:
        ready_file.remove()
        console.close()


def make_console(config: ServingConfig, out: Output) -> Console:
    """Console for events: stdout, or stderr if stdout carries the protocol."""
    stream = sys.stderr if config.listen is None else sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        unbuffered(stream),
        json=config.life.json_logs,
        color=out.note_color if config.listen is None else out.color,
        terminal=terminal and not config.life.json_logs,
        quiet=out.quiet,
    )


@dataclass
class _Run:
    """One run of the command."""

    config: ServingConfig
    out: Output
    console: Console
    interrupts: Interrupts
    ready_file: ReadyFile
    began: float = field(default_factory=time.perf_counter)
    leaving: list[Callable[[], None]] = field(default_factory=list)
    """Cleanup functions for an immediate exit."""

    async def all(self) -> None:
        """Run from start to end."""
        from lmtool.net.telemetry.otel import tracer_from_environment

        self.ready_file.prepare()
        async with self._tap() as tap:
            tracer = tracer_from_environment()
            service = Service(self.config.service, self._log, tap, self._log_http, tracer, self._log_refused)
            await self._all(service)
        self.console.emit(Stopped())

    @contextlib.asynccontextmanager
    async def _tap(self) -> AsyncIterator[ServerTap | None]:
        """The recorder's tap; None without `--record`."""
        if self.config.record is None:
            yield None
            return
        from lmtool.trace.codec import Header
        from lmtool.trace.recorder import record_session

        name = self.config.service.models.main
        kind = "stdio" if self.config.listen is None else "websocket"
        header = Header(transport={"kind": kind, "path": "/"}, model={"name": name} if name else {})
        spell = await asyncio.to_thread(_spelling, self.config.service.models)
        async with record_session(self.out, self.config.record, "server", header, spell, self.leaving.append) as tap:
            yield tap

    async def _all(self, service: Service) -> None:
        sockets = await self._sockets()
        transport = "LMTP over WebSocket" if self.config.listen else "LMTP over stdio"
        if self.config.service.pools_only:
            transport = "pools of providers over HTTP and LMTP"
        self.console.emit(Started(__version__, transport))
        try:
            where = await self._open(service, sockets)
            self._watch_reloads(service)
            info = await self._load(service)
            gc.freeze()  # imports and models stay; collecting them would only cost latency
            self.ready_file.write(where)
            further = tuple(one for one in service.loaded if one is not info) or None
            self.console.emit(Ready(info, time.perf_counter() - self.began, further))
            await self._serve(service)
        finally:
            await service.close()

    async def _sockets(self) -> list[socket.socket]:
        if self.config.listen is None:
            return []
        access = self.config.service.access
        for sentence in access.warnings(public=self.config.listen.public):
            self.out.warn(sentence)
        try:
            sockets = bind(self.config.listen)
        except ResourceError as refusal:
            raise await explain(self.config.listen, refusal, access.key) from refusal
        sockets += self._beside(sockets[0])
        self.leaving += [one.close for one in sockets]
        return sockets

    def _beside(self, main: socket.socket) -> list[socket.socket]:
        """An additional Unix socket, over which the server's own user may watch it with `lmtool inspect`."""
        assert self.config.listen is not None
        if self.config.listen.unix is not None or self.config.service.certificate is not None:
            return []
        try:
            listener = listen_beside(main.getsockname()[1])
        except ResourceError as refusal:
            self.console.emit(LoggedWarning(f"lmtool inspect cannot watch this server: {refusal.sentence}"))
            return []
        return [] if listener is None else [listener]

    async def _open(self, service: Service, sockets: list[socket.socket]) -> str:
        if self.config.listen is None:
            service.talk()
            return "stdio"
        service.listen(sockets)
        tls = self.config.service.certificate is not None
        where, grpc = url(self.config.listen, sockets, tls=tls), None
        port = self.config.service.evergreen.grpc_port
        if port is not None:
            inside = self.config.listen.unix is not None  # with a Unix socket, this machine only
            port = await service.listen_grpc("127.0.0.1" if inside else sockets[0].getsockname()[0], port)
            grpc = f"{'127.0.0.1' if inside else where.partition('://')[2].rpartition(':')[0]}:{port}"
        initial = self.config.service.models.initial
        model = initial[0] if len(initial) > 1 else None  # then clients must name the model
        self.console.emit(Listening(where, self.config.listen.public, attempt(where, model), grpc))
        return where

    async def _load(self, service: Service) -> ModelInfo | None:
        began = time.perf_counter()

        def on_progress(progress: LoadProgress) -> None:
            self.console.emit(Loading(progress, time.perf_counter() - began))

        loading = asyncio.create_task(service.ready(on_progress))
        await first(loading, self.interrupts.first.wait(), service.ended())
        if not loading.done():
            self._leave(self.interrupts.exit_status if self.interrupts.first.is_set() else 0)
        return loading.result()

    async def _serve(self, service: Service) -> None:
        await first(self.interrupts.first.wait(), service.ended())
        if not self.interrupts.first.is_set():
            return
        if service.streams:
            self.console.emit(Draining(service.streams))
        await first(service.drain(self.config.life.drain_limit), self.interrupts.second.wait())
        if self.interrupts.second.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AT_ONCE):
                    await service.close()
            self._leave(self.interrupts.exit_status)

    def _watch_reloads(self, service: Service) -> None:
        """Reload pools, keys and the certificate at SIGHUP; an invalid file is logged and changes nothing."""
        if not service.reloads or not hasattr(signal, "SIGHUP"):
            return

        def reload() -> None:
            for unchanged, read_again in service.reloads.items():
                try:
                    self.console.emit(read_again())
                except LmtoolError as error:
                    self.console.emit(LoggedWarning(f"{unchanged}: {error.sentence}"))

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)

    def _leave(self, status: int) -> NoReturn:
        """Exit without waiting for running threads, as a return from `main` would."""
        self.console.emit(Stopped())
        self.console.close()
        self.ready_file.remove()
        for close in self.leaving:
            close()
        exit_now(status)

    def _log(self, entry: RequestLog) -> None:
        asks = entry.command in {"MODEL_INFO", "BUFFER"} or (entry.command == "MODELS" and entry.model is None)
        if not asks or entry.error is not None or self.config.verbose:
            self.console.emit(Finished(entry))

    def _log_http(self, entry: HttpLog) -> None:
        if self.config.life.json_logs or self.config.verbose:
            self.console.emit(Answered(entry))

    def _log_refused(self, entry: RefusalLog) -> None:
        if self.config.life.json_logs or self.config.verbose:
            self.console.emit(Refused(entry))


def _spelling(models: ModelsConfig) -> Callable[[int], bytes] | None:
    """Function from token ids of the served model to their bytes; None if unknown before the load."""
    if models.main is None:
        return None
    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.trace.recorder import TokenSpelling

    try:
        return TokenSpelling(load_tokenizer(served(models.model).source))
    except LmtoolError:
        return None  # the server takes token ids, and so does its trace


async def first(*waits: Coroutine[Any, Any, object] | asyncio.Task[Any]) -> None:
    """Return when one of these has finished, and raise its exception; the other coroutines are cancelled."""
    tasks = [wait if isinstance(wait, asyncio.Task) else asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()
    for task in done:
        task.result()


def attempt(where: str, model: str | None = None) -> str:
    """An example command that connects to this URL. model: to name if several are served."""
    host, _, port = where.removeprefix("ws://").rstrip("/").rpartition(":")
    endpoint = f":{port}" if host in {"127.0.0.1", "localhost"} else f"{host}:{port}"
    if where.startswith((PREFIX, "wss://")):
        endpoint = shlex.quote(where)
    words = ["lmtool chat", *([] if endpoint == ":8080" else [f"-e {endpoint}"])]
    words += [] if model is None else [f"-m {shlex.quote(model)}"]
    return " ".join([*words, '"Hello there max_tokens=5"'])


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file that exists while the server answers requests."""

    path: str | None

    def write(self, where: str) -> None:
        """Write the URL atomically. Raises `FileError`."""
        if self.path is None:
            return
        final = Path(self.path)
        temporary = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            temporary.write_text(f"{where}\n", encoding="utf-8")
            temporary.replace(final)
        except OSError as error:
            raise FileError(f"cannot write the ready file {final}: {error.strerror}", "check --ready-file") from error

    def prepare(self) -> None:
        """Remove the file of an earlier server, and check the folder. Raises `FileError`."""
        self.remove()
        if self.path is not None and not Path(self.path).parent.is_dir():
            raise FileError(f"cannot write the ready file {self.path}: no such folder", "check --ready-file")

    def remove(self) -> None:
        """Remove the file, if it exists. Raises `FileError`."""
        if self.path is None:
            return
        try:
            Path(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise FileError(
                f"cannot remove the ready file {self.path}: {error.strerror}", "check --ready-file"
            ) from error


_SEND_FAILED = "socket.send() raised exception."
"""asyncio's message for a client that has disconnected, which its reader reports already."""


class _Warnings(logging.Handler):
    """Turns warnings and errors of loggers into events; prints tracebacks only when debugging."""

    def __init__(self, emit: Callable[[Event], None], *, debug: bool) -> None:
        super().__init__(logging.WARNING)
        self._emit = emit
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio" and record.msg == _SEND_FAILED:
            return
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message += f" ({type(error).__name__}: {error})"
            if self._debug:
                traceback.print_exception(error)
        self._emit(LoggedWarning(message))


@contextlib.contextmanager
def emit_warnings(emit: Callable[[Event], None], *, debug: bool) -> Iterator[None]:
    """Emit warnings and errors of lmtool's and uvicorn's loggers as events."""
    handler = _Warnings(emit, debug=debug)
    loggers = [logging.getLogger(name) for name in ("lmtool", "uvicorn.error", "asyncio")]
    hub = logging.getLogger("huggingface_hub")
    if not debug:
        hub.setLevel(logging.ERROR)  # it logs each attempt; the final error is raised
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        hub.setLevel(logging.NOTSET)
        for logger in loggers:
            logger.removeHandler(handler)
