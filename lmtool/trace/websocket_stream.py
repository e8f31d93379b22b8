"""One direction of a WebSocket connection: bytes to messages (RFC 6455, with permessage-deflate of RFC 7692)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from lmtool.trace.content import decoded

if TYPE_CHECKING:
    from collections.abc import Generator

LARGEST_MESSAGE = 2**24
"""Bytes; of larger messages only the size is told."""


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """A close frame."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message of more than `LARGEST_MESSAGE` bytes went by."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """From here on the bytes cannot be followed."""

    reason: str


Item: TypeAlias = "str | bytes | CloseFrame | TooLarge | Unreadable"


class WebSocketStream:
    """Takes bytes of either end, masked or not, and gives whole messages; pings and pongs are passed over."""

    def __init__(self, *, deflate: bool = False, takeover: bool = True) -> None:
        """Follow a connection; deflate: permessage-deflate was agreed; takeover: its context lasts between messages."""
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
        """What these bytes complete."""
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
        """Waits for more bytes at each `yield`. Raises `ProtocolError`."""
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
        """A frame of a message; size: of its payload, which is left out where it is too large."""
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
