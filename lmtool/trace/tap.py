"""What goes over one connection, as events: bytes of both directions in, frames, requests and responses out."""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING

from lmtool.access.credentials import without_credentials
from lmtool.trace.events import Close, Done, Drop, Event, Frame, Open, Piece, Remark, Request, Response
from lmtool.trace.http_stream import Data, Head, HttpStream, Last, Opaque, asks_for_websocket
from lmtool.trace.observing import body_content, content_of, sse_content
from lmtool.trace.websocket_stream import Broken, Closing, TooLarge, WebSocketStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Direction
    from lmtool.trace.http_stream import Part
    from lmtool.trace.styles import Style

LARGEST_PIECE = 2**20
"""Bytes of a body after which it is told in pieces."""
LARGEST_REQUEST = 2**24
"""Bytes of a request's body that are kept."""


class ConnectionTap:
    """Follows one connection through a proxy, whatever it speaks: HTTP/1.1, WebSocket, both in turn.

    The proxy gives `requests.feed` what the client sends until `upgraded`, and tells the parts here; everything else it
    forwards first and tells afterwards. Nothing here raises for what a peer sends.
    """

    def __init__(self, connection: int, style: Style) -> None:
        """Follow the connection of this number; style: tried first when JSON is taken apart."""
        self.requests = HttpStream(responses=False)
        """Splits what the client sends."""
        self.upgraded = False
        """Whether WebSocket frames are spoken."""
        self.recordable = True
        """Whether there is anything to record any more."""
        self._responses = HttpStream(responses=True)
        self._number = connection
        self._style: Style = style
        self._opened = False
        self._pending: deque[_Asked] = deque()
        self._answer: _Answer | None = None
        self._frames: dict[Direction, WebSocketStream] = {}
        self._closing: tuple[str, Closing] | None = None

    @property
    def idle(self) -> bool:
        """Whether every request has its whole answer."""
        return not self._pending and self._answer is None

    def asked(self, time: float, parts: list[Part]) -> Iterator[Event]:
        """What the client's parts mean."""
        for part in parts:
            if isinstance(part, Head):
                yield from self._ask(time, part)
            elif isinstance(part, Data) and self._pending:
                self._pending[-1].add(part.body)
            elif isinstance(part, Last) and self._pending:
                self._pending[-1].complete = True
                yield from self._pending[-1].tell(time, self._number, self._style)
            elif isinstance(part, Opaque) and self.upgraded:
                yield from self.frames(time, ">", part.raw)
        yield from self._unfollowed(time, self.requests, "client")

    def _ask(self, time: float, head: Head) -> Iterator[Event]:
        self._pending.append(_Asked(head))
        self._responses.methods.append(head.start[0])
        if not self._opened:
            self._opened = True
            agent = head.get("user-agent")
            facts = {"peer": "client", "path": head.start[1], **({"agent": agent} if agent else {})}
            yield Open(time, self._number, facts)

    def answered(self, time: float, data: bytes) -> Iterator[Event]:
        """What bytes of the server mean."""
        if self.upgraded:
            yield from self.frames(time, "<", data)
            return
        for part in self._responses.feed(data):
            yield from self._answered(time, part)
        yield from self._unfollowed(time, self._responses, "server")

    def _answered(self, time: float, part: Part) -> Iterator[Event]:
        if isinstance(part, Head):
            yield from self._begin_answer(time, part)
        elif isinstance(part, Data) and self._answer is not None:
            yield from self._answer.add(time, part.body)
        elif isinstance(part, Last) and self._answer is not None:
            yield from self._answer.finish(time)
            self._answer = None
        elif isinstance(part, Opaque) and self.upgraded:
            yield from self.frames(time, "<", part.raw)

    def _begin_answer(self, time: float, head: Head) -> Iterator[Event]:
        status = int(head.start[1]) if head.start[1].isdigit() else 0
        if 100 <= status < 200 and status != 101:
            return
        asked = self._pending.popleft() if self._pending else None
        if status == 101:
            self._upgrade(head)
            return
        if asked is not None:
            yield from asked.tell(time, self._number, self._style, even_upgrade=True)
            if asked.upgrade:
                self.requests.resume()
            if not asked.complete:
                yield Remark(time, "note", self._number, "answered before the request was complete")
        yield Response(time, self._number, status, head.start[2], _joined(head))
        self._answer = _Answer(head, self._number, self._style)

    def _upgrade(self, head: Head) -> None:
        self.upgraded = True
        extension = head.get("sec-websocket-extensions").lower()
        deflate = "permessage-deflate" in extension
        directions: tuple[tuple[Direction, str], ...] = ((">", "client"), ("<", "server"))
        for direction, end in directions:
            takeover = f"{end}_no_context_takeover" not in extension
            self._frames[direction] = WebSocketStream(deflate=deflate, takeover=takeover)

    def frames(self, time: float, direction: Direction, data: bytes) -> Iterator[Event]:
        """What bytes mean once `upgraded`."""
        for seen in self._frames[direction].feed(data):
            if isinstance(seen, str | bytes):
                yield Frame(time, direction, self._number, content_of(seen, self._style))
            elif isinstance(seen, Closing):
                self._closing = self._closing or ("client" if direction == ">" else "server", seen)
            elif isinstance(seen, TooLarge):
                yield Remark(time, "note", self._number, f"{direction} {seen.bytes} bytes were not recorded")
            elif isinstance(seen, Broken):
                yield Remark(time, "note", self._number, f"{direction} is no longer recorded: {seen.reason}")

    def end(self, time: float, by: str) -> Iterator[Event]:
        """The connection is over; `by`: who ended it first (`client`, `server` or `proxy`)."""
        whole = self._responses.between
        for part in self._responses.end():
            whole = whole or isinstance(part, Last)
            yield from self._answered(time, part)
        if not self._opened:
            return
        if self._closing is not None:
            closer, closing = self._closing
            yield Close(time, self._number, closer, closing.code, closing.reason)
        elif self.upgraded or self._pending or not whole:
            yield Drop(time, self._number, {"by": by})
        else:
            yield Close(time, self._number, by)

    def _unfollowed(self, time: float, stream: HttpStream, who: str) -> Iterator[Event]:
        if stream.broken and self.recordable:
            self.recordable = False
            yield Remark(time, "note", self._number, f"no longer recorded: the {who} sent {stream.broken}")


class _Asked:
    """A request on its way."""

    def __init__(self, head: Head) -> None:
        self.upgrade = asks_for_websocket(head)
        self.complete = False
        """Whether its last byte has been seen."""
        self._head = head
        self._body = bytearray()
        self._size = 0
        self._told = False

    def add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LARGEST_REQUEST:
            self._body += data

    def tell(self, time: float, number: int, style: Style, *, even_upgrade: bool = False) -> Iterator[Event]:
        """The request, once; a WebSocket handshake only if it was refused."""
        if self._told or (self.upgrade and not even_upgrade):
            return
        self._told = True
        method, path, _ = self._head.start
        body = body_content(bytes(self._body), style) if self._body else None
        yield Request(time, number, method, path, _joined(self._head), body)
        if self._size > LARGEST_REQUEST:
            yield Remark(time, "note", number, f"> {self._size - len(self._body)} bytes of this body were not recorded")


class _Answer:
    """A response's body on its way: server-sent events one by one, everything else in one piece if it is not large."""

    def __init__(self, head: Head, number: int, style: Style) -> None:
        self._sse = "text/event-stream" in head.get("content-type").lower()
        packed = head.get("content-encoding").lower() in ("gzip", "x-gzip", "deflate")
        self._unpack = zlib.decompressobj(47) if packed else None
        self._number = number
        self._style: Style = style
        self._held = bytearray()
        self._searched = 0

    def add(self, time: float, data: bytes) -> Iterator[Event]:
        self._held += self._unpacked(data)
        if self._sse:
            yield from self._events(time)
        if len(self._held) > LARGEST_PIECE:
            yield from self._rest(time)

    def finish(self, time: float) -> Iterator[Event]:
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

    def _events(self, time: float) -> Iterator[Event]:
        while (end := self._event_end()) > 0:
            block = bytes(self._held[:end])
            del self._held[:end]
            self._searched = 0
            yield Piece(time, "sse", self._number, sse_content(block, self._style))
        self._searched = max(0, len(self._held) - 3)

    def _event_end(self) -> int:
        ends = [self._held.find(gap, self._searched) + len(gap) for gap in (b"\n\n", b"\r\n\r\n", b"\r\r")]
        return min((end for end, gap in zip(ends, (2, 4, 2), strict=True) if end >= gap), default=0)

    def _rest(self, time: float) -> Iterator[Event]:
        if self._held:
            rest = bytes(self._held)
            self._held.clear()
            self._searched = 0
            if self._sse:
                yield Piece(time, "sse", self._number, sse_content(rest, self._style))
            else:
                yield Piece(time, "body", self._number, body_content(rest, self._style))


def _joined(head: Head) -> dict[str, str]:
    """The headers as events have them: never with credentials."""
    told: dict[str, str] = {}
    for name, value in without_credentials(head.headers):
        told[name] = f"{told[name]}, {value}" if name in told else value
    return told
