"""An HTTP request and its response on their way, as events: what both taps share, whoever splits the bytes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from lmtool.access.credentials import without_credentials
from lmtool.providers.answer_reader import parts_of
from lmtool.providers.body_parts import form_of
from lmtool.trace.events import Done, Piece, Remark, Request
from lmtool.trace.http_stream import asks_for_websocket
from lmtool.trace.observing import body_content, sse_content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.http_stream import Head
    from lmtool.trace.styles import Style

LARGEST_PIECE = 2**20
"""Bytes of a body after which it is told in pieces."""
LARGEST_REQUEST = 2**24
"""Bytes of a request's body that are kept."""


class RequestRecorder:
    """A request on its way."""

    def __init__(self, head: Head) -> None:
        self.upgrade = asks_for_websocket(head)
        self.complete = False
        """Whether its last byte has been seen."""
        self._head = head
        self._body = bytearray()
        self._size = 0
        self._emitted = False

    def add(self, data: bytes) -> None:
        """More of the body."""
        self._size += len(data)
        if self._size <= LARGEST_REQUEST:
            self._body += data

    def emit(self, time: float, number: int, style: Style, *, even_upgrade: bool = False) -> Iterator[Event]:
        """The request, once; a WebSocket handshake only if it was refused."""
        if self._emitted or (self.upgrade and not even_upgrade):
            return
        self._emitted = True
        method, path, _ = self._head.start
        body = body_content(bytes(self._body), style) if self._body else None
        yield Request(time, number, method, path, joined_headers(self._head), body)
        if self._size > LARGEST_REQUEST:
            yield Remark(time, "note", number, f"> {self._size - len(self._body)} bytes of this body were not recorded")


class ResponseRecorder:
    """A response's body on its way: server-sent events and JSON lines one by one, all else in large pieces."""

    def __init__(self, head: Head, number: int, style: Style) -> None:
        self._form = form_of(head.get("content-type"))
        self._parts = parts_of(self._form)
        packed = head.get("content-encoding").lower() in ("gzip", "x-gzip", "deflate")
        self._unpack = zlib.decompressobj(47) if packed else None
        self._number = number
        self._style: Style = style

    def add(self, time: float, data: bytes) -> Iterator[Event]:
        """More of the body."""
        for block in self._parts.split(self._unpacked(data)):
            yield self._piece(time, block)
        if self._parts.pending_bytes > LARGEST_PIECE:
            yield from self._rest(time)

    def finish(self, time: float) -> Iterator[Event]:
        """The body is complete."""
        yield from self._rest(time)
        yield Done(time, self._number)

    def _unpacked(self, data: bytes) -> bytes:
        if self._unpack is None or not data:
            return data
        try:
            return self._unpack.decompress(data, LARGEST_PIECE * 64)
        except zlib.error:
            self._unpack = None  # not what its header says: kept as it is from here on
            return data

    def _rest(self, time: float) -> Iterator[Event]:
        if rest := self._parts.take_rest():
            yield self._piece(time, rest)

    def _piece(self, time: float, data: bytes) -> Piece:
        if self._form == "events":
            return Piece(time, "sse", self._number, sse_content(data, self._style))
        return Piece(time, "body", self._number, body_content(data, self._style))


def joined_headers(head: Head) -> dict[str, str]:
    """The headers of a message, those of one name as one; never with credentials."""
    joined: dict[str, str] = {}
    for name, value in without_credentials(head.headers):
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined
