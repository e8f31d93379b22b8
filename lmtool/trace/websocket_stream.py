"""One direction of a WebSocket connection: bytes to messages (RFC 6455, with permessage-deflate of RFC 7692)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TypeAlias

LARGEST_MESSAGE = 2**24
"""Bytes; of larger messages only the size is told."""
_TAIL = b"\x00\x00\xff\xff"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


@dataclass(frozen=True, slots=True)
class Closing:
    """A close frame."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message of more than `LARGEST_MESSAGE` bytes went by."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Broken:
    """From here on the bytes cannot be followed."""

    reason: str


Seen: TypeAlias = "str | bytes | Closing | TooLarge | Broken"


class WebSocketStream:
    """Takes bytes of either end, masked or not, and gives whole messages; pings and pongs are passed over."""

    def __init__(self, *, deflate: bool = False, takeover: bool = True) -> None:
        """Follow a connection; deflate: permessage-deflate was agreed; takeover: its context lasts between messages."""
        self._deflate = deflate
        self._takeover = takeover
        self._inflater = zlib.decompressobj(-15)
        self._buffer = bytearray()
        self._skip = 0
        self._fragments: list[bytes] = []
        self._size = 0
        self._text = False
        self._packed = False
        self._broken = False

    def feed(self, data: bytes) -> list[Seen]:
        """What these bytes complete."""
        seen: list[Seen] = []
        if self._broken:
            return seen
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        self._buffer += data
        at = 0
        while not self._broken and (frame := self._frame(at)) is not None:
            begin, end, mask = frame
            if end - begin > LARGEST_MESSAGE:
                at = self._pass_over(at, begin, end, seen)
                continue
            payload = bytes(self._buffer[begin:end])
            self._take(self._buffer[at], _unmasked(payload, mask) if mask else payload, seen)
            at = end
        del self._buffer[:at]
        return seen

    def _frame(self, at: int) -> tuple[int, int, bytes] | None:
        """Begin and end of the payload of the frame at a place, and its mask; None while it is not complete."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        length, begin = buffer[at + 1] & 0x7F, at + 2
        if length > 125:
            width = 2 if length == 126 else 8
            begin += width
            if len(buffer) < begin:
                return None
            length = int.from_bytes(buffer[begin - width : begin], "big")
        mask = b""
        if buffer[at + 1] & 0x80:
            begin += 4
            mask = bytes(buffer[begin - 4 : begin])
        end = begin + length
        return (begin, end, mask) if len(buffer) >= end or length > LARGEST_MESSAGE else None

    def _pass_over(self, at: int, begin: int, end: int, seen: list[Seen]) -> int:
        first = self._buffer[at]
        if first & 0x0F != _CONTINUATION:
            self._size = 0
        self._size += end - begin
        if first & 0x80:
            seen.append(TooLarge(self._size))
        if self._deflate:
            self._break("a compressed message too large to be followed", seen)
        self._skip = max(0, end - len(self._buffer))
        return min(end, len(self._buffer))

    def _take(self, first: int, payload: bytes, seen: list[Seen]) -> None:
        opcode, final = first & 0x0F, bool(first & 0x80)
        if opcode in (_PING, _PONG):
            return
        if opcode == _CLOSE:
            seen.append(_closing(payload))
        elif opcode not in (_CONTINUATION, _TEXT, _BINARY) or first & 0x30 or (first & 0x40 and not self._deflate):
            self._break(f"a frame of an unknown kind ({first:#04x})", seen)
        else:
            self._take_data(first, payload, seen, final=final)

    def _take_data(self, first: int, payload: bytes, seen: list[Seen], *, final: bool) -> None:
        if first & 0x0F != _CONTINUATION:
            self._text, self._packed = first & 0x0F == _TEXT, bool(first & 0x40)
            self._fragments, self._size = [], 0
        self._size += len(payload)
        if self._size <= LARGEST_MESSAGE:
            self._fragments.append(payload)
        if not final:
            return
        if self._size > LARGEST_MESSAGE:
            seen.append(TooLarge(self._size))
            return
        message = b"".join(self._fragments)
        self._fragments = []
        if self._packed:
            self._inflate(message, seen)
        else:
            self._finish(message, seen)

    def _inflate(self, packed: bytes, seen: list[Seen]) -> None:
        try:
            message = self._inflater.decompress(packed + _TAIL, LARGEST_MESSAGE)
        except zlib.error:
            return self._break("compressed data that cannot be unpacked", seen)
        if self._inflater.unconsumed_tail:
            return self._break("a compressed message too large to be followed", seen)
        if not self._takeover:
            self._inflater = zlib.decompressobj(-15)
        return self._finish(message, seen)

    def _finish(self, message: bytes, seen: list[Seen]) -> None:
        if not self._text:
            seen.append(message)
            return
        try:
            seen.append(message.decode())
        except UnicodeDecodeError:
            seen.append(message)

    def _break(self, reason: str, seen: list[Seen]) -> None:
        self._broken = True
        seen.append(Broken(reason))


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    if not size:
        return payload
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def _closing(payload: bytes) -> Closing:
    if len(payload) < 2:
        return Closing(None, "")
    return Closing(int.from_bytes(payload[:2], "big"), payload[2:].decode("utf-8", "replace"))
