"""Bounds what an event loop reads of one connection before the others get their turn."""

from __future__ import annotations

import asyncio

READ_BYTES = 16 * 1024
"""Bytes of a connection that are read in one turn of the event loop."""


class BoundedReads(asyncio.BufferedProtocol, asyncio.Protocol):
    """Gives `data_received` at most `read_bytes` at a time, also under TLS, where asyncio would give it 256 KiB.

    Place it in front of a protocol with `data_received` among the bases of a class.
    """

    _buffer: memoryview | None = None

    @property
    def read_bytes(self) -> int:
        """Bytes that the next read may have, at most `READ_BYTES`."""
        return READ_BYTES

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the signature is asyncio's
        """Buffer that the transport reads into next."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(READ_BYTES))  # under TLS asyncio fills parts of it
        return self._buffer[: self.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        assert self._buffer is not None
        self.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        """Let the transport close."""
