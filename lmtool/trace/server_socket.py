"""A WebSocket's server end over streams, for servers that read HTTP themselves."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from lmtool.net.websocket_closing import cut_reason
from lmtool.protocol.lmtp.messages import SUBPROTOCOL

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

    from websockets.typing import Subprotocol

_LARGEST = 2**26


class ServerSocket:
    """One client's WebSocket; its handshake was admitted, and is answered by `messages`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        """data: bytes from the handshake on that were read already."""
        self._reader = reader
        self._writer = writer
        self._protocol = ServerProtocol(max_size=_LARGEST, select_subprotocol=_lmtp_if_offered)
        self._fragments = bytearray()
        self._text = False
        self._protocol.receive_data(data)

    @property
    def address(self) -> str:
        """The client's."""
        return str((self._writer.get_extra_info("peername") or ("",))[0])

    async def messages(self) -> AsyncIterator[str | bytes]:
        """What the client sends, until it closes or goes, or `close` was called."""
        while True:
            for event in self._protocol.events_received():
                if isinstance(event, Request):
                    self._protocol.send_response(self._protocol.accept(event))
                elif (message := self._assembled(event)) is not None:
                    yield message
            await self.flush()
            if self._protocol.close_expected():
                return
            received = await self._reader.read(2**16)
            if not received:
                return
            self._protocol.receive_data(received)

    def _assembled(self, event: object) -> str | bytes | None:
        if not isinstance(event, Frame) or event.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if event.opcode is not Opcode.CONT:
            self._text, self._fragments = event.opcode is Opcode.TEXT, bytearray()
        self._fragments += event.data
        if not event.fin:
            return None
        return self._fragments.decode("utf-8", "replace") if self._text else bytes(self._fragments)

    async def send(self, message: str | bytes) -> None:
        """Send a message; one to a client that has gone is lost."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        await self.flush()

    def close(self, code: int, reason: str) -> None:
        """Close in good order, with as much of the reason as can be sent; `flush` sends it."""
        self._protocol.send_close(code, cut_reason(reason))

    def cut(self) -> None:
        """End the connection without a close frame."""
        self._writer.transport.abort()

    async def flush(self) -> None:
        """Send what waits."""
        with contextlib.suppress(ConnectionError):  # the read that follows sees the end
            for data in self._protocol.data_to_send():
                if data:
                    self._writer.write(data)
            await self._writer.drain()


def _lmtp_if_offered(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The subprotocol to select (LMTP, TRA-12)."""
    return next((one for one in offered if one == SUBPROTOCOL), None)
