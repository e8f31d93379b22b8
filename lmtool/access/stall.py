"""Cuts a connection whose peer takes nothing of what waits for it, and would hold its streams and memory for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_SECONDS = 60.0
"""How long a peer may take nothing, unless a server is told otherwise."""


class StallTimer:
    """Aborts a transport once its peer has taken no byte for a time.

    `start` it when the transport pauses writing, or has been given the last bytes for now; `stop` it before more is
    written. So whatever shrinks meanwhile was taken.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, seconds: float, on_stall: Callable[[], None] | None = None
    ) -> None:
        """seconds: 0 for any number. on_stall: called before the transport is aborted."""
        self._transport = transport
        self._seconds = seconds
        self._on_stall = on_stall
        self._waiting = 0
        """Bytes that waited when the timer was started, or looked last."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to wait for the peer, unless nothing waits for it, or that has begun already."""
        if self._timer is None and self._seconds:
            self._wait(_waiting_bytes(self._transport))

    def stop(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, waiting: int) -> None:
        self._waiting = waiting
        if waiting:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting = _waiting_bytes(self._transport)
        if waiting < self._waiting:
            self._wait(waiting)
            return
        if self._on_stall is not None:
            self._on_stall()
        self._transport.abort()


def _waiting_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that the peer has not taken; under TLS those above it, and those below, which asyncio does not count."""
    if not hasattr(transport, "_ssl_protocol"):
        return transport.get_write_buffer_size()
    tls = transport._ssl_protocol  # noqa: SLF001 - nothing public leads to the transport below
    if tls is None or tls._transport is None:  # noqa: SLF001 - it is being closed, within a time of its own
        return 0
    below: int = tls._transport.get_write_buffer_size()  # noqa: SLF001
    return transport.get_write_buffer_size() + below
