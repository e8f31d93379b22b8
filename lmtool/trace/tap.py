"""What goes over one connection, as events: bytes of both directions in, frames, requests and responses out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lmtool.trace.events import Close, Drop, Event, Frame, Open, Remark, Response
from lmtool.trace.http_messages import RequestRecorder, ResponseRecorder, joined_headers
from lmtool.trace.http_stream import Data, Head, HttpStream, Last, Opaque
from lmtool.trace.observing import content_of
from lmtool.trace.websocket_stream import Broken, Closing, TooLarge, WebSocketStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Direction
    from lmtool.trace.http_stream import Part
    from lmtool.trace.styles import Style


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
        self._pending: deque[RequestRecorder] = deque()
        self._answer: ResponseRecorder | None = None
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
                yield from self._pending[-1].emit(time, self._number, self._style)
            elif isinstance(part, Opaque) and self.upgraded:
                yield from self.frames(time, ">", part.raw)
        yield from self._unfollowed(time, self.requests, "client")

    def _ask(self, time: float, head: Head) -> Iterator[Event]:
        self._pending.append(RequestRecorder(head))
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
            yield from asked.emit(time, self._number, self._style, even_upgrade=True)
            if asked.upgrade:
                self.requests.resume()
            if not asked.complete:
                yield Remark(time, "note", self._number, "answered before the request was complete")
        yield Response(time, self._number, status, head.start[2], joined_headers(head))
        self._answer = ResponseRecorder(head, self._number, self._style)

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
