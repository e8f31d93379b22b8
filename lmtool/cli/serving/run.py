"""`lmtool serve` from its first line to its last: what it says and when, and with which exit status it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lmtool import __version__
from lmtool.cli.output import Output, wants_color
from lmtool.cli.serving.console import Console, unbuffered
from lmtool.cli.serving.interrupts import Interrupts, watch
from lmtool.cli.serving.listening import ListenConfig, bind, explain, url
from lmtool.cli.serving.service import Service, ServiceConfig
from lmtool.cli.serving.status import Draining, Finished, Listening, Loading, Ready, Started, Stopped, Trouble
from lmtool.cli.wiring import ModelsConfig, served
from lmtool.errors import FileError, LmtoolError, ResourceError
from lmtool.types import LoadProgress

if TYPE_CHECKING:
    import socket

    from lmtool.cli.invocation import Common
    from lmtool.cli.serving.status import Event
    from lmtool.lmtp.request_log import RequestLog
    from lmtool.trace.server_tap import ServerTap
    from lmtool.types import ModelInfo

AT_ONCE = 3.0
"""Seconds that the second Ctrl-C leaves for saying goodbye."""
SWITCH_SECONDS = 0.0001
"""After which a thread that is busy in Python lets another one on.

The engine lets go of the interpreter with each kernel that it calls, some dozens of times a step. With Python's own
5 ms, one busy thread (such as one that renders a long conversation) makes the 99th percentile of 16 streams' gaps
200 ms in place of 9; with this, 16. Where no thread is busy for so long, nothing changes.
"""


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Everything that `lmtool serve` was told."""

    listen: ListenConfig | None = field(default_factory=ListenConfig)
    """None: speak on stdin and stdout."""
    service: ServiceConfig = field(default_factory=ServiceConfig)
    ready_file: str | None = None
    """Gets the URL once the model answers, and goes away with the server."""
    drain_limit: float = 3600.0
    """Seconds that running streams get to end after the first Ctrl-C."""
    json_logs: bool = False
    record: str | None = None
    """File, or folder, that keeps what is said over LMTP and HTTP as traces."""
    inspect: bool = False
    """Show all traffic on an inspector's screen, in place of lines on stdout; then `record` names a file."""


async def run(config: ServingConfig, common: Common) -> None:
    """Serve until a signal, the end of stdin, or an error. Raises `LmtoolError`; ends the process where it must.

    A signal while the model loads ends the process at once with 128 + its number: a load cannot be stopped otherwise.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    console = make_console(config, common)
    ready_file = ReadyFile(config.ready_file)
    try:
        with watch() as interrupts, warnings_told(console.tell, debug=common.debug):
            await _Run(config, common, console, interrupts, ready_file).all()
    finally:
        ready_file.remove()
        console.close()


def make_console(config: ServingConfig, common: Common) -> Console:
    """Where events go: stdout, or stderr where stdout is the wire."""
    stream = sys.stderr if config.listen is None else sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        unbuffered(stream),
        json=config.json_logs,
        color=wants_color(stream, common.color),
        terminal=terminal and not config.json_logs,
        quiet=common.quiet,
    )


@dataclass
class _Run:
    """One run of the command."""

    config: ServingConfig
    common: Common
    console: Console
    interrupts: Interrupts
    ready_file: ReadyFile
    began: float = field(default_factory=time.perf_counter)

    async def all(self) -> None:
        """Do everything in order."""
        self.ready_file.prepare()
        async with self._tap() as tap:
            await self._all(Service(self.config.service, self._log, tap))
        self.console.tell(Stopped())

    @contextlib.asynccontextmanager
    async def _tap(self) -> AsyncIterator[ServerTap | None]:
        """What records, if anything does."""
        if self.config.record is None:
            yield None
            return
        from lmtool.cli.own_recording import recorded
        from lmtool.trace.header import Header

        name = self.config.service.models.main
        kind = "stdio" if self.config.listen is None else "websocket"
        header = Header(transport={"kind": kind, "path": "/"}, model={"name": name} if name else {})
        spell = await asyncio.to_thread(_spelling, self.config.service.models)
        async with recorded(Output.of(self.common), self.config.record, "server", header, spell) as tap:
            yield tap

    async def _all(self, service: Service) -> None:
        sockets = await self._sockets()
        self.console.tell(Started(__version__, "LMTP over WebSocket" if self.config.listen else "LMTP over stdio"))
        try:
            where = self._open(service, sockets)
            info = await self._load(service)
            gc.freeze()  # what was imported and loaded stays; looking through it again would only cost latency
            self.ready_file.write(where)
            self.console.tell(Ready(info, time.perf_counter() - self.began))
            await self._serve(service)
        finally:
            await service.close()

    async def _sockets(self) -> list[socket.socket]:
        if self.config.listen is None:
            return []
        access = self.config.service.access
        for sentence in access.warnings(public=self.config.listen.public):
            Output.of(self.common).warn(sentence)
        try:
            return bind(self.config.listen)
        except ResourceError as refusal:
            raise await explain(self.config.listen, refusal, access.key) from refusal

    def _open(self, service: Service, sockets: list[socket.socket]) -> str:
        if self.config.listen is None:
            service.talk()
            return "stdio"
        service.listen(sockets)
        where = url(self.config.listen, sockets)
        self.console.tell(Listening(where, self.config.listen.public, attempt(where)))
        return where

    async def _load(self, service: Service) -> ModelInfo | None:
        began = time.perf_counter()

        def on_progress(progress: LoadProgress) -> None:
            self.console.tell(Loading(progress, time.perf_counter() - began))

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
            self.console.tell(Draining(service.streams))
        await first(service.drain(self.config.drain_limit), self.interrupts.second.wait())
        if self.interrupts.second.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AT_ONCE):
                    await service.close()
            self._leave(self.interrupts.exit_status)

    def _leave(self, status: int) -> NoReturn:
        """End the process with threads still at work, which a return from `main` would wait for."""
        self.console.tell(Stopped())
        self.console.close()
        self.ready_file.remove()
        os._exit(status)

    def _log(self, entry: RequestLog) -> None:
        if entry.command != "MODEL_INFO" or entry.error is not None or self.common.verbose:
            self.console.tell(Finished(entry))


def _spelling(models: ModelsConfig) -> Callable[[int], bytes] | None:
    """What token ids of the served model mean; None where that is not known before it is loaded."""
    if models.main is None:
        return None
    from lmtool.text.tokenizer import load_tokenizer

    try:
        return load_tokenizer(served(models.model).source).piece
    except LmtoolError:
        return None  # a server of ids: its trace has ids


async def first(*waits: Coroutine[Any, Any, object] | asyncio.Task[Any]) -> None:
    """Return when one of these has ended, and raise what it raised; the others are cancelled, tasks given excepted."""
    tasks = [wait if isinstance(wait, asyncio.Task) else asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()
    for task in done:
        task.result()


def attempt(where: str) -> str:
    """The command that talks to the server at this URL."""
    host, _, port = where.removeprefix("ws://").rstrip("/").rpartition(":")
    endpoint = f":{port}" if host in {"127.0.0.1", "localhost"} else f"{host}:{port}"
    return f'lmtool chat {"" if endpoint == ":8080" else f"-e {endpoint} "}"Hello there max_tokens=5"'


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file that is there as long as the server answers."""

    path: str | None

    def write(self, where: str) -> None:
        """Write the URL, whole or not at all. Raises `FileError`."""
        if self.path is None:
            return
        final = Path(self.path)
        beside = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            beside.write_text(f"{where}\n", encoding="utf-8")
            beside.replace(final)
        except OSError as error:
            raise FileError(f"cannot write the ready file {final}: {error.strerror}", "check --ready-file") from error

    def prepare(self) -> None:
        """Take away what an earlier server left, and see that the folder is there. Raises `FileError`."""
        self.remove()
        if self.path is not None and not Path(self.path).parent.is_dir():
            raise FileError(f"cannot write the ready file {self.path}: no such folder", "check --ready-file")

    def remove(self) -> None:
        """Take the file away, if it is there. Raises `FileError`."""
        if self.path is None:
            return
        try:
            Path(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise FileError(
                f"cannot remove the ready file {self.path}: {error.strerror}", "check --ready-file"
            ) from error


class _Warnings(logging.Handler):
    """Turns log records of warnings and errors into events: a sentence, and the traceback only when debugging."""

    def __init__(self, tell: Callable[[Event], None], *, debug: bool) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message += f" ({type(error).__name__}: {error})"
            if self._debug:
                traceback.print_exception(error)
        self._tell(Trouble(message))


@contextlib.contextmanager
def warnings_told(tell: Callable[[Event], None], *, debug: bool) -> Iterator[None]:
    """Tell what the rooms and the carrier log as warnings or errors, instead of leaving it to Python's logging."""
    handler = _Warnings(tell, debug=debug)
    loggers = [logging.getLogger(name) for name in ("lmtool", "uvicorn.error", "asyncio")]
    hub = logging.getLogger("huggingface_hub")
    if not debug:
        hub.setLevel(logging.ERROR)  # a line for each of its attempts; what they come to is raised
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        hub.setLevel(logging.NOTSET)
        for logger in loggers:
            logger.removeHandler(handler)
