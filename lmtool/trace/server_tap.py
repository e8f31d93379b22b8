"""What a server of ours records of itself: LMTP frames as it shows them, HTTP as it goes through its application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from lmtool.trace.events import Close, Drop, Open, Remark, Response
from lmtool.trace.frame_tap import FrameTap
from lmtool.trace.http_messages import RequestRecorder, ResponseRecorder, joined_headers
from lmtool.trace.http_stream import Head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.events import Event
    from lmtool.trace.styles import Style

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application: scope, receive, send."""


class ServerTap(FrameTap):
    """Numbers connections of both kinds in one row.

    An application is not told which HTTP requests share a connection: each of them counts as one.
    """

    def __init__(
        self, tell: Callable[[int, Iterable[Event]], None], clock: Callable[[], float], style: Style = "msgspec"
    ) -> None:
        """As `FrameTap`."""
        super().__init__(tell, clock, style)
        self._count = 0
        self._numbers: dict[int, int] = {}
        """Of LMTP connections, by the server's own number."""

    def opened(self, connection: int, agent: str) -> None:
        """An LMTP connection begins."""
        self._numbers[connection] = self._next()
        super().opened(self._numbers[connection], agent)

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """A frame goes by."""
        super().frame(self._numbers[connection], direction, frame)

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """An LMTP connection is over."""
        super().ended(self._numbers.pop(connection), by, code)

    def around(self, application: Application, leave_out: Collection[str] = ()) -> Application:
        """The application with its HTTP requests told, except those to these paths: probes would fill a recording.

        Each message goes on first, unchanged, and is told afterwards.
        """

        async def record(scope: Message, receive: Receive, send: Send) -> None:
            path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
            if scope["type"] != "http" or path in leave_out:
                await application(scope, receive, send)
                return
            exchange = _Exchange(self._next(), scope, self._tell, self._clock, self._style)
            try:
                await application(scope, exchange.wrap_receive(receive), exchange.wrap_send(send))
            finally:
                exchange.end()

        return record

    def _next(self) -> int:
        self._count += 1
        return self._count


class _Exchange:
    """One HTTP request and its response."""

    def __init__(
        self,
        number: int,
        scope: Message,
        tell: Callable[[int, Iterable[Event]], None],
        clock: Callable[[], float],
        style: Style,
    ) -> None:
        self._number = number
        self._tell_events = tell
        self._clock = clock
        self._style: Style = style
        head = Head(b"", (scope["method"], _target(scope), "HTTP/1.1"), _headers(scope["headers"]))
        self._request = RequestRecorder(head)
        self._response: ResponseRecorder | None = None
        self._by = "server"
        """Who ended it early."""
        self._complete = False
        agent = head.get("user-agent")
        facts = {"peer": "client", "path": head.start[1], **({"agent": agent} if agent else {})}
        now = clock()
        self._tell([Open(now, number, facts)])
        if head.get("content-length") in ("", "0") and not head.get("transfer-encoding"):  # nobody will ask for a body
            self._request.complete = True
            self._tell(self._request.emit(now, number, style))

    def _tell(self, events: Iterable[Event]) -> None:
        self._tell_events(self._number, events)

    def wrap_receive(self, receive: Receive) -> Receive:
        async def record_request() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._by = "client"
            elif not self._request.complete:
                self._request.add(message.get("body", b""))
                if not message.get("more_body", False):
                    self._request.complete = True
                    self._tell(self._request.emit(self._clock(), self._number, self._style))
            return message

        return record_request

    def wrap_send(self, send: Send) -> Send:
        async def record_response(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self._tell(self._begin(message))
            elif message["type"] == "http.response.body" and self._response is not None and not self._complete:
                self._tell(self._response.add(self._clock(), message.get("body", b"")))
                if not message.get("more_body", False):
                    self._complete = True
                    self._tell(self._response.finish(self._clock()))

        return record_response

    def _begin(self, message: Message) -> list[Event]:
        now, number = self._clock(), self._number
        events = list(self._request.emit(now, number, self._style))
        if not self._request.complete:
            events.append(Remark(now, "note", number, "answered before the request was complete"))
        status = message["status"]
        head = Head(b"", ("HTTP/1.1", str(status), _phrase(status)), _headers(message.get("headers", ())))
        self._response = ResponseRecorder(head, number, self._style)
        return [*events, Response(now, number, status, head.start[2], joined_headers(head))]

    def end(self) -> None:
        """The application has returned, or failed."""
        now = self._clock()
        events = [] if self._response is not None else list(self._request.emit(now, self._number, self._style))
        ending = Close(now, self._number, "client") if self._complete else Drop(now, self._number, {"by": self._by})
        self._tell([*events, ending])


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs)


def _target(scope: Message) -> str:
    """The request's target as it was sent, as far as an application is told."""
    raw, query = scope.get("raw_path"), scope.get("query_string", b"")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    return f"{path}?{query.decode('latin-1')}" if query else path


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
