"""What vLLM's engine tells of a held stream beside its tokens: where its logprobs moved, and why it cannot go on.

vLLM itself has no way to send either: its logprobs are those before any processor, and a processor that fails ends the
whole engine. So its process writes to a local socket of the worker, always before the token that it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, RequestError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_STEPS = 8
"""Streams of which one message tells: with 256 alternatives each it stays far below a socket's buffer."""
_MOST_BYTES = 1024 * 1024
_PATIENCE = 1.0
"""Seconds that the engine waits for a worker that does not read."""
_ERRORS = {kind.code: kind for kind in (ConstraintError, ConstraintTooComplexError, RequestError)}

Best: TypeAlias = "tuple[tuple[int, float], ...]"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a held stream."""

    name: str
    """vLLM's name of the request."""
    place: int
    """Index of the token among those generated."""
    shift: float = 0.0
    """To be added to the raw logprob, after the bias, of any token that the constraint allows; nats."""
    best: Best = ()
    """The most likely ids under bias and constraint, with their logprobs."""
    error: tuple[str, ...] = ()
    """Code, message and hints of what ends the stream."""


class Teller:
    """The engine's end."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket: socket.socket | None = None

    def tell(self, steps: Sequence[Step]) -> bool:
        """Send what happened in one step to all held streams; whether that was possible."""
        try:
            connected = self._socket or self._connect()
            for start in range(0, len(steps), _STEPS):
                connected.send(json.dumps([asdict(step) for step in steps[start : start + _STEPS]]).encode())
        except OSError:  # nobody is there any more, nobody reads, or it is on another machine
            self.close()
            return False
        return True

    def close(self) -> None:
        """Tell no more, until `tell` begins anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_PATIENCE)
        self._socket.connect(self._path)
        return self._socket


class Told:
    """The worker's end: steps by stream, each taken once. Belongs to the running event loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = _socket()
        self._listening.bind(str(path))
        self._listening.listen()
        self._connected: list[socket.socket] = []
        self._steps: dict[str, dict[int, Step]] = {}
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listening.accept()
            connection.settimeout(0)
            self._connected.append(connection)
            self._loop.add_reader(connection, self.read)

    def expect(self, name: str) -> None:
        """Keep what is told of this stream from now on, until `forget`."""
        self._steps[name] = {}

    def forget(self, name: str) -> None:
        """Keep no more of this stream."""
        self._steps.pop(name, None)

    def read(self) -> None:
        """Take in whatever was sent."""
        if not self._connected:
            self._accept()
        for connection in tuple(self._connected):
            while data := _received(connection):
                for told in json.loads(data):
                    best = tuple((token, value) for token, value in told["best"])
                    self._keep(Step(**{**told, "best": best, "error": tuple(told["error"])}))
            if data is not None:  # the engine is gone
                self._loop.remove_reader(connection)
                self._connected.remove(connection)
                connection.close()

    def _keep(self, step: Step) -> None:
        if step.name in self._steps:
            self._steps[step.name][step.place] = step

    def step(self, name: str, place: int) -> Step:
        """What was told of a stream's step. Raises the error that ends it there, or that nothing was told."""
        self.read()
        step = self._steps.get(name, {}).pop(place, None)
        if step is None:
            raise ServerError("vLLM's engine did not tell how a constrained step went", "see the server's log")
        if step.error:
            raise error_of(step.error)
        return step

    def close(self) -> None:
        """Hear no more."""
        for connection in (self._listening, *self._connected):
            self._loop.remove_reader(connection)
            connection.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(0)
    return made


def _received(connection: socket.socket) -> bytes | None:
    """One message, b"" behind the last one, None where there is none yet."""
    try:
        return connection.recv(_MOST_BYTES)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""


def error_of(parts: tuple[str, ...] | list[str]) -> LmtoolError:
    """An error from its code, message and hints."""
    code, message, *hints = parts
    return _ERRORS.get(code, ServerError)(message, *hints)


def parts_of(error: LmtoolError) -> tuple[str, ...]:
    """Code, message and hints of an error."""
    return (error.code, error.message, *error.hints)
