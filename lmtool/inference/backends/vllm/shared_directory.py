"""State shared by a worker and the processes of vLLM's engine: settings, step reports, log and liveness socket.

Step reports carry the logprob corrections and errors of constrained streams. vLLM itself can send neither: its logprobs
precede every logits processor, and a processor that fails ends the whole engine. So the engine's process writes to a
local socket of the worker, always before the token in question.

The liveness socket ends the engine's processes when their worker dies, and the worker when its server dies, however
that happens. Nothing is sent: the kernel closes the sockets and pipes of a dead process, and a thread at the other end
waits for that. It needs no signals, no parent process and no help from vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import select
import shutil
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeAlias

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, RequestError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.types import ModelInfo


_REPORTS_PER_MESSAGE = 8
"""Limit per message, so that it stays far below a socket's buffer with 256 alternatives each."""
_MAX_MESSAGE_BYTES = 1024 * 1024
_SEND_TIMEOUT = 1.0
"""Seconds for which the engine waits for a worker that does not read."""
_ERRORS = {kind.code: kind for kind in (ConstraintError, ConstraintTooComplexError, RequestError)}

TopLogprobs: TypeAlias = "tuple[tuple[int, float], ...]"
"""Token ids with their logprobs, most likely first."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of a stream that has a constraint or logits processors."""

    request_id: str
    """vLLM's."""
    token_index: int
    """Index of the token among those generated."""
    logprob_shift: float = 0.0
    """Added to the raw, biased logprob of every token that the constraint allows; nats."""
    top_logprobs: TopLogprobs = ()
    """Most likely ids after bias and constraint."""
    error: tuple[str, ...] = ()
    """Code, message and hints of an error that ends the stream."""


class StepSender:
    """Engine side of the step channel; connects at the first message."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket: socket.socket | None = None

    def send(self, reports: Sequence[StepReport]) -> bool:
        """Send the reports of one step; False if nobody reads them or the worker is on another machine."""
        try:
            connection = self._socket or self._connect()
            for start in range(0, len(reports), _REPORTS_PER_MESSAGE):
                part = reports[start : start + _REPORTS_PER_MESSAGE]
                connection.send(json.dumps([asdict(report) for report in part]).encode())
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the connection; the next `send` opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_SEND_TIMEOUT)
        self._socket.connect(self._path)
        return self._socket


class StepReceiver:
    """Worker side of the step channel: reports by stream, each delivered once. Belongs to the running event loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(0)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connections: list[socket.socket] = []
        self._reports: dict[str, dict[int, StepReport]] = {}
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.settimeout(0)
            self._connections.append(connection)
            self._loop.add_reader(connection, self._read)

    def subscribe(self, request_id: str) -> None:
        """Start keeping the reports of a stream; those of other streams are dropped."""
        self._reports[request_id] = {}

    def unsubscribe(self, request_id: str) -> None:
        """Drop the reports of this stream."""
        self._reports.pop(request_id, None)

    def report(self, request_id: str, token_index: int) -> StepReport:
        """Remove and return the report of a stream's token. Raises the error that ends the stream there.

        Raises `ServerError` where the engine sent no report.
        """
        self._read()
        report = self._reports.get(request_id, {}).pop(token_index, None)
        if report is None:
            raise ServerError("vLLM's engine sent no report of a constrained step", "see the server's log")
        if report.error:
            raise error_from(report.error)
        return report

    def close(self) -> None:
        """Close all connections."""
        for connection in (self._listener, *self._connections):
            self._loop.remove_reader(connection)
            connection.close()

    def _read(self) -> None:
        if not self._connections:
            self._accept()
        for connection in tuple(self._connections):
            while data := _receive(connection):
                for entry in json.loads(data):
                    top = tuple((token, logprob) for token, logprob in entry["top_logprobs"])
                    self._store(StepReport(**{**entry, "top_logprobs": top, "error": tuple(entry["error"])}))
            if data is not None:  # the engine disconnected
                self._loop.remove_reader(connection)
                self._connections.remove(connection)
                connection.close()

    def _store(self, report: StepReport) -> None:
        if report.request_id in self._reports:
            self._reports[report.request_id][report.token_index] = report


def _receive(connection: socket.socket) -> bytes | None:
    """Receive one message; b"" if disconnected, None if there is no message yet."""
    try:
        return connection.recv(_MAX_MESSAGE_BYTES)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""


def error_from(parts: Sequence[str]) -> LmtoolError:
    """Build an error from its code, message and hints."""
    code, message, *hints = parts
    return _ERRORS.get(code, ServerError)(message, *hints)


def error_parts(error: LmtoolError) -> tuple[str, ...]:
    """Code, message and hints of an error."""
    return (error.code, error.message, *error.hints)


KEY = "lmtool"
"""Names the directory in vLLM's `additional_config`, and our processor's arguments in a request's `extra_args`."""
PROCESSOR = "lmtool.inference.backends.vllm.processor:GuideProcessor"
EXTENSION = "lmtool.inference.backends.vllm.engine_guides.GuideExtension"
MARKS = "thought_marks"
"""Member of a constraint sent to the engine: the marks of the thought before the answer."""
STEP_SOCKET = "steps"
MAX_LOG_BYTES = 4 * 1024 * 1024
"""Largest log before it is emptied: a server runs for months, and /tmp may be in memory."""
TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Model settings that the engine's processes need to apply constraints."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    tokenizer: str | None
    """Content of tokenizer.json; constraints need it."""

    @classmethod
    def of(cls, info: ModelInfo, tokenizer: str | None) -> EngineSettings:
        """Settings of a model."""
        return cls(info.vocab_size or 0, info.eos_token_ids, tokenizer)

    def to_json(self) -> str:
        """Serialize for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineSettings:
        """Parse the text of `to_json`."""
        members = json.loads(text)
        return cls(members["vocab_size"], tuple(members["eos_ids"]), members["tokenizer"])


class SharedDirectory:
    """Worker side of the directory; belongs to its event loop. `worker` creates the directory."""

    def __init__(self, path: Path) -> None:
        """path: of the directory, which must exist."""
        self.path = path
        self.steps = StepReceiver(path / STEP_SOCKET)

    @property
    def engine_options(self) -> dict[str, Any]:
        """Options of vLLM's engine that load our processor and extension into its processes."""
        return {
            "logits_processors": [PROCESSOR],
            "worker_extension_cls": EXTENSION,
            "additional_config": {KEY: str(self.path)},
        }


class EngineLog:
    """Redirects stdout and stderr, of this process and of all that it starts from now on, to a file.

    The file's end says why vLLM failed.
    """

    def __init__(self, directory: Path, *, verbose: bool) -> None:
        """directory: shared with the engine's processes. verbose: redirect both to stderr, and keep nothing."""
        self.wire: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        """The original stdout: for the protocol alone."""
        self.stderr: TextIO = os.fdopen(os.dup(2), "w", encoding="utf-8")
        """The original stderr: the server's log."""
        self._path = Path(os.devnull) if verbose else directory / "vllm.log"
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not verbose:
            os.dup2(log, 2)
        os.dup2(2, 1)
        os.close(log)

    def report(self, kind: str, message: str, *hints: str) -> None:
        """Write a sentence to the original stderr. kind: `error` or `warning`."""
        self.stderr.write("\n  ".join([f"{kind}: {message}", *hints]) + "\n")
        self.stderr.flush()

    def tail(self) -> str:
        """The last lines that were printed."""
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    def trim(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Empty the file if it is larger; processes that have it open go on writing at its new end."""
        if self._path.stat().st_size > max_bytes:
            os.truncate(self._path, 0)


GRACE_SECONDS = 2.0
"""Seconds for the engine's processes to end by themselves."""
_NAME = "alive"
_BACKLOG = 4096
"""Most processes: their connections wait in the queue and are never accepted."""


class LivenessSocket:
    """Worker side: a listening socket that exists as long as the process."""

    def __init__(self, directory: Path) -> None:
        """directory: shared with the engine's processes; removed at the end, by them where the worker could not."""
        self._directory = directory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(directory / _NAME))
        self._socket.listen(_BACKLOG)
        os.register_at_fork(after_in_child=self._in_child)

    def end(self, status: int) -> NoReturn:
        """End the engine's processes, then this one with that exit status, and remove the directory.

        vLLM's own shutdown waits five seconds for processes that it then kills, and the interpreter's exit could wait
        for its threads forever. Python's tracker process is left alone: it frees shared memory when all others ended.
        """
        self._socket.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in multiprocessing.active_children():
            process.join(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                process.kill()  # where it hangs so that no thread of its own can end it
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(status)

    def end_with_reader(self, descriptor: int) -> None:
        """Start a thread that ends everything as soon as the pipe behind `descriptor` has no reader any more.

        That is when the server has died: one that closes a worker reads until the worker has ended. It works while a
        model loads, too, when nothing is written for minutes.
        """
        poll = select.poll()
        poll.register(os.dup(descriptor), 0)

        def wait() -> None:
            poll.poll()
            self.end(1)

        threading.Thread(target=wait, name="lmtool-watchdog", daemon=True).start()

    def _in_child(self) -> None:
        """A process that is forked, instead of spawned, has a copy of the socket."""
        if self._socket.fileno() != -1:
            self._socket.close()
            end_with_worker(self._directory)


def end_with_worker(directory: Path) -> None:
    """Start a thread that ends this process, one of the engine's, as soon as the worker has ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(directory / _NAME))
    except OSError:
        _exit(directory)

    def wait() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        _exit(directory)

    threading.Thread(target=wait, name="lmtool-watchdog", daemon=True).start()


def _exit(directory: Path) -> NoReturn:
    """Exit at once: the process may hang in a computation, and nothing is left to clean up for."""
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)
