"""Side channel from vLLM's engine to the worker: logprob corrections and errors of constrained streams, per step.

vLLM itself can send neither: its logprobs are those before any logits processor, and a processor that fails ends the
whole engine. So the engine's process writes to a local socket of the worker, always before the token in question.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, RequestError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_REPORTS_PER_MESSAGE = 8
"""With 256 alternatives each, a message then stays far below a socket's buffer."""
_MAX_MESSAGE_BYTES = 1024 * 1024
_SEND_TIMEOUT = 1.0
"""Seconds that the engine waits for a worker that does not read."""
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
    """To be added to the raw logprob, after the bias, of any token that the constraint allows; nats."""
    top_logprobs: TopLogprobs = ()
    """The most likely ids under bias and constraint."""
    error: tuple[str, ...] = ()
    """Code, message and hints of the error that ends the stream."""


class StepSender:
    """The engine's end of the channel; connects at the first message."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket: socket.socket | None = None

    def send(self, reports: Sequence[StepReport]) -> bool:
        """Send the reports of one step; False where nobody reads them, or the worker is on another machine."""
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
    """The worker's end of the channel: reports by stream, each delivered once. Belongs to the running event loop."""

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
        """Keep the reports of this stream from now on; those of other streams are dropped."""
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
            if data is not None:  # the engine is gone
                self._loop.remove_reader(connection)
                self._connections.remove(connection)
                connection.close()

    def _store(self, report: StepReport) -> None:
        if report.request_id in self._reports:
            self._reports[report.request_id][report.token_index] = report


def _receive(connection: socket.socket) -> bytes | None:
    """One message; b"" at the connection's end, None where there is no message yet."""
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
