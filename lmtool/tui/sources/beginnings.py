"""What a recording that starts late must know first: open connections, and requests that still run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lmtool.lmtp import frames
from lmtool.trace.events import Close, Done, Drop, Frame, Open, Request
from lmtool.trace.request_table import RequestTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.events import Event

MOST = 10_000
"""Requests kept; of more that run at once the oldest are forgotten."""


class Beginnings:
    """Follows events and keeps those that began what is not over."""

    def __init__(self) -> None:
        self._open: dict[int, Open] = {}
        self._running: dict[int, Frame | Request] = {}
        """By number, in order."""
        self._count = 0
        self._streams: defaultdict[int, RequestTable[int]] = defaultdict(RequestTable)
        self._http: defaultdict[int, list[int]] = defaultdict(list)
        """Numbers of the requests whose answers are not complete, by connection."""

    def events(self) -> list[Event]:
        """What began and still lasts, in order of time."""
        return sorted((*self._open.values(), *self._running.values()), key=lambda event: event.time)

    def follow(self, events: Iterable[Event]) -> None:
        """Take events in order."""
        for event in events:
            match event:
                case Frame():
                    self._frame(event)
                case Open():
                    self._open[event.connection] = event
                case Close() | Drop():
                    self._over(event.connection)
                case Request():
                    self._http[event.connection].append(self._begin(event))
                case Done() if self._http[event.connection]:
                    self._running.pop(self._http[event.connection].pop(0), None)

    def _frame(self, frame: Frame) -> None:
        table = self._streams[frame.connection]
        command, entries = frame.answer()
        for entry in entries:
            if frames.ends(command, entry):
                owner, key = table.owner(command, entry), frames.stream_key(entry.get("stream_id"))
                if owner is not None and table.holders.get(key) == owner:
                    table.end(key)
                self._running.pop(-1 if owner is None else owner, None)
        if frame.direction == ">":
            command, value, _ = frame.parse()
            if command in {"GENERATE", "SCORE"} and isinstance(value, dict):
                table.add(command, frames.stream_key(value.get("stream_id")), self._begin(frame))

    def _begin(self, event: Frame | Request) -> int:
        self._count += 1
        self._running[self._count] = event
        if len(self._running) > MOST:
            del self._running[next(iter(self._running))]
        return self._count

    def _over(self, connection: int) -> None:
        self._open.pop(connection, None)
        table = self._streams.pop(connection, None)
        for number in (*self._http.pop(connection, ()), *(table.open_requests() if table is not None else ())):
            self._running.pop(number, None)
