"""What a recording that starts late must know first: open connections, and requests that still run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.trace.events import Close, Done, Drop, Frame, Open, Parsed, Request, token_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.trace.events import Event

MOST = 10_000
"""Requests kept; of more that run at once the oldest are forgotten."""


class Beginnings:
    """Follows events and keeps those that began what is not over."""

    def __init__(self) -> None:
        self._open: dict[int, Open] = {}
        self._running: dict[tuple[int, object], Frame | Request] = {}

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
                    self._begin((event.connection, None), event)
                case Done():
                    self._running.pop((event.connection, None), None)

    def _frame(self, frame: Frame) -> None:
        if frame.direction == "<":
            for entry in token_entries(frame):
                if entry.get("finish_reason") is not None or "error" in entry:
                    self._running.pop((frame.connection, _key(entry)), None)
        elif frame.command in {"GENERATE", "SCORE"} and isinstance(frame.content, Parsed):
            payload = frame.content.value
            if isinstance(payload, dict):
                self._begin((frame.connection, _key(payload)), frame)

    def _begin(self, key: tuple[int, object], event: Frame | Request) -> None:
        self._running.pop(key, None)
        self._running[key] = event
        if len(self._running) > MOST:
            del self._running[next(iter(self._running))]

    def _over(self, connection: int) -> None:
        self._open.pop(connection, None)
        for key in [key for key in self._running if key[0] == connection]:
            del self._running[key]


def _key(payload: object) -> int | str:
    """A stream's id as something to look up."""
    stream_id = payload.get("stream_id") if isinstance(payload, dict) else None
    return stream_id if isinstance(stream_id, int | str) else repr(stream_id)
