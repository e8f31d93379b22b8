"""Bounds what an event loop reads of one connection before the others get their turn."""

from __future__ import annotations

import asyncio
import threading

READ_BYTES = 16 * 1024
"""Bytes of a connection that are read in one turn of the event loop."""


class _Shared(threading.local):
    """Buffer of all connections of a thread: one each would cost idle clients `READ_BYTES` of memory apiece."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))


_shared = _Shared()


class BoundedReads(asyncio.BufferedProtocol, asyncio.Protocol):
    """Gives `data_received` at most `read_bytes` at a time, also under TLS, where asyncio would give it 256 KiB.

    Place it in front of a protocol with `data_received` among the bases of a class.
    """

    @property
    def read_bytes(self) -> int:
        """Bytes that the next read may have, at most `READ_BYTES`."""
        return READ_BYTES

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the signature is asyncio's
        """Buffer that the transport reads into next; it calls `buffer_updated` before it lets another one read."""
        return _shared.buffer[: self.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self.data_received(bytes(_shared.buffer[:nbytes]))

    def eof_received(self) -> None:
        """Let the transport close."""
