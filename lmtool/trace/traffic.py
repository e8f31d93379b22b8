"""What goes over a server's connections, for clients that watch (LMTP, WATCH): each event as JSON, within bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.codec import write_event
from lmtool.trace.content import JsonText, decoded, parse_body, parse_frame, parse_sse_event
from lmtool.trace.events import Frame, Open, Piece, Request
from lmtool.trace.redaction import Redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.trace.events import Event

MAX_WATCHERS = 16
"""Clients that watch a server at once."""
MAX_BYTES = 8 * 1024 * 1024
"""Of the events that wait for one of them."""
MAX_EVENT_BYTES = 1024 * 1024
"""Of one event; a longer one is lost."""
_HEADERS = Redaction(("headers",), b"")
"""Leaves out every header that is not known to be harmless, and what stands behind the ? of a path."""


class TrafficWatcher:
    """Events that wait for one client; see `lmtp.watching.Watcher`."""

    def __init__(self, traffic: TrafficWatch, leave_out: int, notify: Callable[[], None]) -> None:
        self._traffic = traffic
        self.leave_out = leave_out
        """The connection that watches."""
        self._notify = notify
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0

    def add(self, lines: Sequence[bytes]) -> None:
        """Take events, and drop the oldest where they are too much."""
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
        """The next events, and how many were dropped before them."""
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
        """Collect nothing more."""
        self._traffic.remove(self)
        self._lines.clear()


class TrafficWatch:
    """Hands events to all who watch. Belongs to one event loop; costs next to nothing while nobody does."""

    def __init__(self) -> None:
        self._watchers: list[TrafficWatcher] = []
        self.open: dict[int, Open] = {}
        """Connections by number, to tell who watches later."""

    @property
    def watched(self) -> bool:
        """Whether somebody watches."""
        return bool(self._watchers)

    def emit(self, connection: int, events: Iterable[Event]) -> None:
        """Hand on the events of a connection."""
        if not self._watchers:
            return
        lines = [line for event in events if (line := _line(event)) is not None]
        for watcher in self._watchers:
            if lines and watcher.leave_out != connection:
                watcher.add(lines)

    def watch(self, connection: int, notify: Callable[[], None], now: float) -> TrafficWatcher | None:
        """Begin; None where too many watch. connection: of the client that watches. now: by the events' clock."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = TrafficWatcher(self, connection, notify)
        before = [_opened(event, now) for number, event in self.open.items() if number != connection]
        watcher.add([line for event in before if (line := _line(event)) is not None])
        self._watchers.append(watcher)
        return watcher

    def remove(self, watcher: TrafficWatcher) -> None:
        """Hand nothing more to one; harmless when repeated."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)


def _opened(event: Open, now: float) -> Open:
    """The beginning of a connection that was open before, as a recording that starts late has it (FORMAT.md)."""
    return replace(event, time=now, facts={**event.facts, "before": round(now - event.time, 6)})


def _line(event: Event) -> bytes | None:
    """An event as JSON, without secrets; None for one of which nothing is left."""
    shown = _HEADERS.apply(_exact(event))
    return None if shown is None else write_event(shown, "msgspec").encode()


def _exact(event: Event) -> Event:
    """The same with what was sent as text: peers may send what JSON does not have, such as NaN (LMTP, FRM-6)."""
    if isinstance(event, Frame):
        return replace(event, content=event.wire())
    if isinstance(event, Piece):
        return replace(event, content=decoded(event.wire()))
    if isinstance(event, Request) and event.body is not None:
        return replace(event, body=decoded(event.wire_body()))
    return event


def taken_apart(event: Event) -> Event:
    """An event as a watcher got it, with JSON where there was some: as a recording has it."""
    if isinstance(event, Frame) and not isinstance(event.content, JsonText):
        return replace(event, content=parse_frame(event.content, "msgspec"))
    if isinstance(event, Piece):
        parse = parse_sse_event if event.kind == "sse" else parse_body
        return replace(event, content=parse(event.wire(), "msgspec"))
    if isinstance(event, Request) and event.body is not None:
        return replace(event, body=parse_body(event.wire_body(), "msgspec"))
    return event
