"""Record and watch a server's own traffic: LMTP frames, Evergreen messages, HTTP, and its calls to providers."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from lmtool.net.access.credentials import secrets_of, without_query_keys
from lmtool.protocol.providers.answer_reader import is_chat_socket
from lmtool.trace.codec import write_event
from lmtool.trace.connection_tap import ConnectionTap, FrameTap
from lmtool.trace.events import (
    Close,
    Drop,
    Frame,
    JsonText,
    Message,
    Open,
    Piece,
    Request,
    decoded,
    parse_body,
    parse_frame,
    parse_sse_event,
)
from lmtool.trace.http_stream import Data, Head, Last
from lmtool.trace.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.http_stream import Part

AsgiMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
Application: TypeAlias = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]
"""An ASGI application: scope, receive, send."""


class ServerTap(FrameTap):
    """Traffic of a server, for a recording and for clients that WATCH it; implements `lmtp.watching.Traffic`.

    Connections of all protocols share one sequence of numbers. An ASGI application cannot see which HTTP requests share
    a connection, so each counts as one. Without a recording or watchers, only open connections are tracked.
    """

    def __init__(self, record: Callable[[int, Iterable[Event]], None] | None, clock: Callable[[], float]) -> None:
        """record: takes all events, as `emit` of `FrameTap`; None records nothing. clock: seconds."""
        super().__init__(self._publish, clock)
        self._record = record
        self._traffic = TrafficWatch()
        self._count = 0
        self._numbers: dict[int, int] = {}
        """Trace numbers of LMTP connections, by the server's own number."""

    @property
    def active(self) -> bool:
        """True if events are recorded or watched now."""
        return self._record is not None or self._traffic.watched

    def clock(self) -> float:
        """Current time of the events' clock, in seconds."""
        return self._clock()

    def watch(self, connection: int, notify: Callable[[], None]) -> TrafficWatcher | None:
        """Send a client the traffic of all other connections; see `lmtp.watching.Traffic`."""
        return self._traffic.watch(self._numbers[connection], notify, self._clock())

    def _publish(self, number: int, events: Iterable[Event]) -> None:
        batch = list(events)
        for event in batch:
            if isinstance(event, Open):
                self._traffic.open[event.connection] = event
            elif isinstance(event, Close | Drop):
                self._traffic.open.pop(number, None)
        if self._record is not None:
            self._record(number, batch)
        self._traffic.emit(number, batch)

    def opened(self, connection: int, agent: str) -> None:
        """Record the start of an LMTP connection."""
        self._numbers[connection] = self._next()
        super().opened(self._numbers[connection], agent)

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """Record a frame."""
        if self.active:
            self._frame(self._numbers[connection], direction, frame)

    def _frame(self, number: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        if self._record is not None:
            super().frame(number, direction, frame)
        else:  # the watcher parses it
            self._publish(number, [Frame(self._clock(), direction, number, frame)])

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """Record the end of an LMTP connection."""
        super().ended(self._numbers.pop(connection), by, code)

    def sessions(self) -> SessionTap:
        """Tap for Evergreen sessions."""
        return SessionTap(self._next, self._publish, self._clock, lambda: self.active)

    def upstream(self) -> UpstreamTap | None:
        """Tap for a gateway's calls to providers; None without a recording, since WATCH does not show them."""
        return None if self._record is None else UpstreamTap(self._next, self._record, self._clock)

    def around(self, application: Application, leave_out: Collection[str] = ()) -> Application:
        """The application, recording its HTTP requests except those to `leave_out`: probes would fill a recording.

        WebSockets of the unified API are recorded too; servers of other protocols report theirs to a tap. Each message
        is forwarded first, unchanged, and recorded afterwards.
        """

        async def record(scope: AsgiMessage, receive: Receive, send: Send) -> None:
            path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
            if scope["type"] == "websocket" and is_chat_socket(path):
                await self._record_socket(application, scope, receive, send)
                return
            if scope["type"] != "http" or path in leave_out or not self.active:
                await application(scope, receive, send)
                return
            number = self._next()
            tap = ConnectionTap(number, "msgspec")
            exchange = _Exchange(scope, tap, self._clock, lambda events: self._emit(number, events))
            try:
                await application(scope, exchange.wrap_receive(receive), exchange.wrap_send(send))
            finally:
                exchange.end()

        return record

    async def _record_socket(self, application: Application, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        number = self._next()
        facts = {"peer": "client", "path": without_query_keys(_target(scope))}
        if agent := dict(_headers(scope["headers"])).get("user-agent"):
            facts["agent"] = agent
        self._emit(number, [Open(self._clock(), number, facts)])
        closed: list[Event] = []

        def note(message: AsgiMessage, direction: Literal[">", "<"]) -> None:
            kind, code = message["type"], message.get("code")
            if kind in {"websocket.receive", "websocket.send"} and self.active:
                text = message.get("text")
                self._frame(number, direction, message["bytes"] if text is None else text)
            elif kind in {"websocket.disconnect", "websocket.close"} and not closed:
                by: Literal["client", "server"] = "client" if direction == ">" else "server"
                closed.append(Close(self._clock(), number, by, code, message.get("reason") or ""))

        async def record_receive() -> AsgiMessage:
            message = await receive()
            note(message, ">")
            return message

        async def record_send(message: AsgiMessage) -> None:
            await send(message)
            note(message, "<")

        try:
            await application(scope, record_receive, record_send)
        finally:
            self._emit(number, closed or [Close(self._clock(), number, "server")])

    def _next(self) -> int:
        self._count += 1
        return self._count


class SessionTap:
    """Records messages of Evergreen sessions. Never raises."""

    def __init__(
        self,
        next_number: Callable[[], int],
        emit: Callable[[int, Iterable[Event]], None],
        clock: Callable[[], float],
        active: Callable[[], bool],
    ) -> None:
        self._next = next_number
        self._emit = emit
        self._clock = clock
        self._active = active
        self._numbers: dict[int, int] = {}
        """Trace numbers, by the server's own number."""

    def opened(self, connection: int, agent: str) -> None:
        """Record the start of a session."""
        number = self._numbers[connection] = self._next()
        facts = {"peer": "client", "protocol": "evergreen", **({"agent": agent} if agent else {})}
        self._emit(number, [Open(self._clock(), number, facts)])

    @property
    def active(self) -> bool:
        """True if messages must be reported now."""
        return self._active()

    def message(self, connection: int, direction: Literal[">", "<"], value: Mapping[str, object]) -> None:
        """Record a message; value: as proto-JSON."""
        number = self._numbers[connection]
        self._emit(number, [Message(self._clock(), direction, number, value)])

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None, reason: str) -> None:
        """Record the end of a session."""
        number = self._numbers.pop(connection)
        self._emit(number, [Close(self._clock(), number, by, code, reason)])


class _Exchange:
    """One HTTP request and its response."""

    def __init__(
        self,
        scope: AsgiMessage,
        tap: ConnectionTap,
        clock: Callable[[], float],
        emit: Callable[[Iterable[Event]], None],
    ) -> None:
        self._tap = tap
        self._clock = clock
        self._emit = emit
        self._ended_by = "server"
        self._request_complete = False
        self._answered = False
        """True once the response has started."""
        self._complete = False
        head = Head(b"", (scope["method"], _target(scope), "HTTP/1.1"), _headers(scope["headers"]))
        # Without a body, the application may never ask for one.
        bodyless = head.get("content-length") in ("", "0") and not head.get("transfer-encoding")
        self._request([head], complete=bodyless)

    def _request(self, parts: list[Part], *, complete: bool) -> None:
        self._request_complete = complete
        self._emit(self._tap.request_parts(self._clock(), [*parts, *([Last()] if complete else [])]))

    def wrap_receive(self, receive: Receive) -> Receive:
        async def record_request() -> AsgiMessage:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._ended_by = "client"
            elif not self._request_complete:
                self._request([_data(message)], complete=not message.get("more_body", False))
            return message

        return record_request

    def wrap_send(self, send: Send) -> Send:
        async def record_response(message: AsgiMessage) -> None:
            await send(message)
            parts: list[Part] = []
            if message["type"] == "http.response.start":
                self._answered, status = True, message["status"]
                parts = [Head(b"", ("HTTP/1.1", str(status), _phrase(status)), _headers(message.get("headers", ())))]
            elif message["type"] == "http.response.body" and self._answered and not self._complete:
                self._complete = not message.get("more_body", False)
                parts = [_data(message), *([Last()] if self._complete else [])]
            self._emit(self._tap.response_parts(self._clock(), parts))

        return record_response

    def end(self) -> None:
        """Record the end: the application has returned or failed."""
        if not self._answered:
            self._request([], complete=True)
        self._emit(self._tap.end(self._clock(), "client" if self._complete else self._ended_by))


def _data(message: AsgiMessage) -> Data:
    return Data(b"", message.get("body", b""))


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs)


def _target(scope: AsgiMessage) -> str:
    """Request target as it was sent, if the application knows it."""
    raw, query = scope.get("raw_path"), scope.get("query_string", b"")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    return f"{path}?{query.decode('latin-1')}" if query else path


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


ALLOWED = frozenset(
    {"accept", "anthropic-version", "content-type", "date", "retry-after", "retry-after-ms", "server", "user-agent"}
    | {"x-request-id", "request-id"}
)
"""Headers that are recorded. Paths are recorded without their query, which may hold a provider's key."""


class UpstreamTap:
    """Records calls to providers; see `interfaces.UpstreamTap`. Never raises."""

    def __init__(
        self, next_number: Callable[[], int], emit: Callable[[int, Iterable[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._next = next_number
        self._emit = emit
        self._clock = clock

    def begin(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamExchange:
        """Record a request."""
        number = self._next()
        parts = urlsplit(url)
        head = Head(b"", (method, parts.path or "/", "HTTP/1.1"), (("host", parts.netloc), *_allowed(headers)))
        secrets = secrets_of([(name.lower(), value) for name, value in headers.items()], f"?{parts.query}")
        exchange = UpstreamExchange(number, self._emit, self._clock, secrets)
        exchange.request([head, Data(b"", body), Last()])
        return exchange


class UpstreamExchange:
    """Records one call; see `interfaces.UpstreamExchange`."""

    def __init__(
        self,
        number: int,
        emit: Callable[[int, Iterable[Event]], None],
        clock: Callable[[], float],
        secrets: Iterable[bytes] = (),
    ) -> None:
        """secrets: keys sent to the provider, which may repeat them in its answer."""
        self._number = number
        self._emit = emit
        self._clock = clock
        self._tap = ConnectionTap(number, "msgspec")
        self._tap.secrets.update(secrets)
        self._begun = False

    def request(self, parts: list[Part]) -> None:
        """Record the complete request."""
        self._emit(self._number, self._tap.request_parts(self._clock(), parts))

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Record the status and headers of the answer."""
        known = {entry.value: entry.phrase for entry in HTTPStatus}
        start = ("HTTP/1.1", str(status), known.get(status, ""))
        self._begun = True
        self._answer([Head(b"", start, _allowed(headers))])

    def data(self, data: bytes) -> None:
        """Record more of the answer's body."""
        self._answer([Data(b"", data)])

    def end(self, *, complete: bool) -> None:
        """Record the end of the exchange. complete: True if the answer was complete."""
        if complete and self._begun:
            self._answer([Last()])
        self._emit(self._number, self._tap.end(self._clock(), "client" if complete else "server"))

    def _answer(self, parts: list[Part]) -> None:
        self._emit(self._number, self._tap.response_parts(self._clock(), parts))


def _allowed(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in headers.items() if name.lower() in ALLOWED)


MAX_WATCHERS = 16
"""Clients that may watch a server at the same time."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of queued events per watcher."""
MAX_EVENT_BYTES = 1024 * 1024
"""Bytes of one event; a longer one is dropped."""
_HEADERS = Redaction(("headers",), b"")
"""Removes every header that is not known to be harmless, and the query of paths."""


class TrafficWatcher:
    """Queue of events for one client; see `lmtp.watching.Watcher`."""

    def __init__(self, traffic: TrafficWatch, leave_out: int, notify: Callable[[], None]) -> None:
        self._traffic = traffic
        self.leave_out = leave_out
        """Connection of the watching client."""
        self._notify = notify
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0

    def add(self, lines: Sequence[bytes]) -> None:
        """Queue events; drop the oldest above `MAX_BYTES`."""
        idle = not self._lines and not self._lost
        for line in lines:
            if len(line) > MAX_EVENT_BYTES:
                self._lost += 1
                continue
            self._lines.append(line)
            self._bytes += len(line)
        while self._bytes > MAX_BYTES:
            self._bytes -= len(self._lines.popleft())
            self._lost += 1
        if idle:
            self._notify()

    def take(self, most_bytes: int) -> tuple[list[bytes], int]:
        """The next events, and the number dropped before them."""
        lost, self._lost = self._lost, 0
        taken: list[bytes] = []
        while self._lines and (not taken or most_bytes >= len(self._lines[0])):
            line = self._lines.popleft()
            most_bytes -= len(line)
            self._bytes -= len(line)
            taken.append(line)
        if self._lines:
            self._notify()
        return taken, lost

    def close(self) -> None:
        """Stop queueing events."""
        self._traffic.remove(self)
        self._lines.clear()


class TrafficWatch:
    """Distributes events to all watchers. Belongs to one event loop; nearly free without watchers."""

    def __init__(self) -> None:
        self._watchers: list[TrafficWatcher] = []
        self.open: dict[int, Open] = {}
        """Open connections by number, reported to later watchers."""

    @property
    def watched(self) -> bool:
        """True if there are watchers."""
        return bool(self._watchers)

    def emit(self, connection: int, events: Iterable[Event]) -> None:
        """Queue the events of a connection for all watchers."""
        if not self._watchers:
            return
        lines = [line for event in events if (line := _line(event)) is not None]
        for watcher in self._watchers:
            if lines and watcher.leave_out != connection:
                watcher.add(lines)

    def watch(self, connection: int, notify: Callable[[], None], now: float) -> TrafficWatcher | None:
        """Add a watcher; None if there are too many. connection: the watching client's. now: by the events' clock."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = TrafficWatcher(self, connection, notify)
        others = [event for number, event in self.open.items() if number != connection]
        # Connections that are open already, as a recording that starts late has them (FORMAT.md).
        facts = [{**event.facts, "before": round(now - event.time, 6)} for event in others]
        opened = [replace(event, time=now, facts=more) for event, more in zip(others, facts, strict=True)]
        watcher.add([line for event in opened if (line := _line(event)) is not None])
        self._watchers.append(watcher)
        return watcher

    def remove(self, watcher: TrafficWatcher) -> None:
        """Remove a watcher; does nothing if it was removed."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)


def _line(event: Event) -> bytes | None:
    """JSON line of an event without secrets; None if nothing remains."""
    shown = _HEADERS.apply(_exact(event))
    return None if shown is None else write_event(shown, "msgspec").encode()


def _exact(event: Event) -> Event:
    """The event with its content as text: peers may send what JSON does not allow, such as NaN (LMTP, FRM-6)."""
    if isinstance(event, Frame):
        return replace(event, content=event.wire())
    if isinstance(event, Piece):
        return replace(event, content=decoded(event.wire()))
    if isinstance(event, Request) and event.body is not None:
        return replace(event, body=decoded(event.wire_body()))
    return event


def taken_apart(event: Event) -> Event:
    """A watched event with its content parsed as JSON where possible, as in a recording."""
    if isinstance(event, Frame) and not isinstance(event.content, JsonText):
        return replace(event, content=parse_frame(event.content, "msgspec"))
    if isinstance(event, Piece):
        parse = parse_sse_event if event.kind == "sse" else parse_body
        return replace(event, content=parse(event.wire(), "msgspec"))
    if isinstance(event, Request) and event.body is not None:
        return replace(event, body=parse_body(event.wire_body(), "msgspec"))
    return event
