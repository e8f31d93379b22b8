"""What a server shows of its other clients (LMTP, WATCH), as events of the inspector's own clock and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.codec import LineError, event_from
from lmtool.trace.events import Close, Drop, Open
from lmtool.trace.server_tap import taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.protocol.lmtp.messages import Watched
    from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
    from lmtool.trace.events import Event


class WatchFeed:
    """Feeds a pipeline with what one connection watches; make a new one for a new connection."""

    def __init__(self, pipeline: EventPipeline, number: Callable[[], int], own_agent: str | None = None) -> None:
        """number: gives each connection its number. own_agent: of connections that are fed by who made them."""
        self._own_agent = own_agent
        self._own: set[int] = set()
        """Open connections of that agent, by the server's numbers."""
        self._pipeline = pipeline
        self._number = number
        self._numbers: dict[int, int] = {}
        """Of open connections, by the server's numbers."""
        self._offset: float | None = None
        """What is added to the server's clock."""

    def take(self, watched: Watched) -> None:
        """Feed what the server has told."""
        if self._offset is None:
            self._offset = self._pipeline.clock() - watched.time
        if watched.lost:
            events = "1 event" if watched.lost == 1 else f"{watched.lost} events"
            self._pipeline.note(f"{events} of other clients were lost: more went by than could be sent here")
        for value in watched.events:
            try:
                event = taken_apart(event_from(value, "msgspec"))
            except LineError as error:
                self._pipeline.note(f"the server told of something that cannot be read: {error}")
                continue
            there = event.connection
            if self._is_own(event):
                continue
            if there not in self._numbers:
                self._numbers[there] = self._number()
            here = self._numbers[there]
            if isinstance(event, Close | Drop):
                del self._numbers[there]
            moved = replace(event, time=max(0.0, event.time + self._offset), connection=here)
            self._pipeline.add(here, [moved])

    def _is_own(self, event: Event) -> bool:
        """Whether an event is of a connection that is fed elsewhere."""
        number = event.connection
        if isinstance(event, Open) and self._own_agent is not None and event.facts.get("agent") == self._own_agent:
            self._own.add(number)
        is_own = number in self._own
        if isinstance(event, Close | Drop):
            self._own.discard(number)
        return is_own

    def lose(self) -> None:
        """End what is still open: the connection that watched is gone."""
        for number in self._numbers.values():
            self._pipeline.add(number, [Drop(self._pipeline.clock(), number, {"by": "server"})])
        self._numbers.clear()
