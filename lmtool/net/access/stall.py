"""Cuts a connection whose peer takes nothing of what waits for it, or takes too long to send a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_SECONDS = 60.0
"""How long a peer may take nothing, unless a server is told otherwise."""
ARRIVAL_SECONDS = 20.0
"""Time in which a request must arrive as a whole, in addition to that for its bytes at `ARRIVAL_RATE`."""
ARRIVAL_RATE = 1000
"""Bytes per second that a peer must send of its request."""


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


class ArrivalTimer:
    """Aborts a transport whose peer takes too long to send a request.

    `start` it when the next request may come, `count` the bytes that come, `stop` it when the request is complete.
    """

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._end = 0.0
        """When the transport is aborted, in seconds of the event loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float | None = None) -> None:
        """Begin to wait, from now on. seconds: None for `ARRIVAL_SECONDS`."""
        self.stop()
        seconds = ARRIVAL_SECONDS if seconds is None else seconds
        loop = asyncio.get_running_loop()
        self._end = loop.time() + seconds
        self._timer = loop.call_later(seconds, self._look)

    def count(self, size: int) -> None:
        """Give the peer the time for the bytes that it has sent."""
        self._end += size / ARRIVAL_RATE

    def stop(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._end:
            self._timer = loop.call_at(self._end, self._look)
        else:
            self._timer = None
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
