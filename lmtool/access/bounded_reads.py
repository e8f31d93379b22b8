"""Bounds what an event loop reads of one connection before the others get their turn."""

from __future__ import annotations

import asyncio

READ_BYTES = 8 * 1024
"""Read of a connection in one turn of the event loop: at most 1,400 WebSocket frames, 5 to 10 ms of parsing."""


class BoundedReads(asyncio.BufferedProtocol, asyncio.Protocol):
    """Gives `data_received` at most `READ_BYTES` at a time, also under TLS, where asyncio would give it 256 KiB.

    Place it in front of a protocol with `data_received` among the bases of a class.
    """

    _buffer: memoryview | None = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the signature is asyncio's
        """Where the transport puts what it reads next."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(READ_BYTES))  # under TLS asyncio fills parts of it
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        assert self._buffer is not None
        self.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """Let the transport close."""
