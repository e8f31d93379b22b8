"""WebSocket over a byte stream: follow one direction (RFC 6455, RFC 7692), or serve a connection."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from lmtool.net.websocket_closing import cut_reason
from lmtool.protocol.lmtp.messages import SUBPROTOCOL
from lmtool.trace.events import decoded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Generator, Sequence

    from websockets.typing import Subprotocol

LARGEST_MESSAGE = 2**24
"""Bytes; for larger messages only the size is reported."""


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """A close frame."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message of more than `LARGEST_MESSAGE` bytes was skipped."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes after this point cannot be parsed."""

    reason: str


Item: TypeAlias = "str | bytes | CloseFrame | TooLarge | Unreadable"


class WebSocketStream:
    """Incremental parser for one direction, masked or not; gives complete messages, ignores pings and pongs."""

    def __init__(self, *, deflate: bool = False, takeover: bool = True) -> None:
        """deflate: permessage-deflate was negotiated; takeover: its context is kept between messages."""
        remote = PerMessageDeflate(  # nothing is sent, so the local side does not matter
            remote_no_context_takeover=not takeover,
            local_no_context_takeover=True,
            remote_max_window_bits=15,
            local_max_window_bits=15,
        )
        self._extensions = [remote] if deflate else []
        self._reader = StreamReader()
        self._items: list[Item] = []
        self._text = False
        self._fragments: list[bytes] = []
        self._size = 0
        self._reading: Generator[None, None, None] | None = self._read()

    def feed(self, data: bytes) -> list[Item]:
        """Items that these bytes complete."""
        if self._reading is not None:
            self._reader.feed_data(data)
            try:
                next(self._reading)
            except StopIteration:
                self._reading = None
            except ProtocolError as error:
                self._items.append(Unreadable(f"a frame that breaks the protocol ({error})"))
                self._reading = None
        items, self._items = self._items, []
        return items

    def _read(self) -> Generator[None, None, None]:
        """Parse frames; waits for more bytes at each `yield`. Raises `ProtocolError`."""
        buffer = self._reader.buffer
        while True:
            while len(buffer) < 2:
                yield
            opcode, final, masked = buffer[0] & 0x0F, bool(buffer[0] & 0x80), bool(buffer[1] & 0x80)
            try:
                frame = yield from Frame.parse(
                    self._reader.read_exact, mask=masked, max_size=LARGEST_MESSAGE, extensions=self._extensions
                )
            except PayloadTooBig as error:
                if self._extensions or error.size is None:
                    self._items.append(Unreadable("a compressed message too large to be followed"))
                    return
                yield from self._skip(error.size + 4 * masked)
                self._add(opcode, b"", error.size, final=final)
                continue
            if frame.opcode is Opcode.CLOSE:
                code = int.from_bytes(frame.data[:2], "big") if len(frame.data) > 1 else None
                self._items.append(CloseFrame(code, bytes(frame.data[2:]).decode("utf-8", "replace")))
            elif frame.opcode not in (Opcode.PING, Opcode.PONG):
                self._add(opcode, bytes(frame.data), len(frame.data), final=final)

    def _skip(self, size: int) -> Generator[None, None, None]:
        while size > len(self._reader.buffer):
            size -= len(self._reader.buffer)
            self._reader.discard()
            yield
        del self._reader.buffer[:size]

    def _add(self, opcode: int, data: bytes, size: int, *, final: bool) -> None:
        """Add a frame of a message. size: of its payload, which is dropped if too large."""
        if opcode != Opcode.CONT:
            self._text, self._fragments, self._size = opcode == Opcode.TEXT, [], 0
        self._size += size
        if self._size <= LARGEST_MESSAGE:
            self._fragments.append(data)
        if final:
            self._items.append(TooLarge(self._size) if self._size > LARGEST_MESSAGE else self._message())

    def _message(self) -> str | bytes:
        message = b"".join(self._fragments)
        self._fragments = []
        return decoded(message) if self._text else message


_LARGEST = 2**26


class ServerSocket:
    """Server end of one client's WebSocket; its handshake was admitted and is answered by `messages`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        """data: bytes already read, from the handshake on."""
        self._reader = reader
        self._writer = writer
        self._protocol = ServerProtocol(max_size=_LARGEST, select_subprotocol=_lmtp_if_offered)
        self._fragments = bytearray()
        self._text = False
        self._protocol.receive_data(data)

    @property
    def address(self) -> str:
        """Address of the client."""
        return str((self._writer.get_extra_info("peername") or ("",))[0])

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Messages of the client, until it closes, disconnects, or `close` is called."""
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
        """Send a message; it is lost if the client has disconnected."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        await self.flush()

    def close(self, code: int, reason: str) -> None:
        """Queue a close frame with as much of the reason as fits; `flush` sends it."""
        self._protocol.send_close(code, cut_reason(reason))

    def cut(self) -> None:
        """End the connection without a close frame."""
        self._writer.transport.abort()

    async def flush(self) -> None:
        """Send queued data."""
        with contextlib.suppress(ConnectionError):  # the read that follows sees the end
            for data in self._protocol.data_to_send():
                if data:
                    self._writer.write(data)
            await self._writer.drain()


def _lmtp_if_offered(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The subprotocol to select (LMTP, TRA-12)."""
    return next((one for one in offered if one == SUBPROTOCOL), None)
