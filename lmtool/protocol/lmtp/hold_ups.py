"""Decides what to say of streams that wait, or bring nothing: the system messages of SPEC.md (SYS)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.interfaces import place_of
from lmtool.protocol.lmtp.messages import SystemMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.core.interfaces import QueuePlace, StreamHandle
    from lmtool.core.types import StreamId

TICK = 0.5
"""Seconds between two looks at a connection's streams."""
SLOW = 2.0
"""Seconds without an entry after which a stream is slow; it is said again after twice as long, and so on."""
REPEAT = 5.0
"""Seconds after which a place in the queue is told again though it has not changed."""


@dataclass(slots=True)
class HoldUp:
    """What was said of one stream, to decide what is to be said next. Times are in seconds, by any clock."""

    since: float
    """When its request came, its last entry did, or it last waited for something else."""
    loading: bool = False
    """True if its model is on its way into memory, which is reported as progress."""
    shows_place: bool = True
    _place: int | None = None
    _told: float = 0.0
    """When the place was told."""
    _slow_after: float = field(default_factory=lambda: SLOW)

    def note_entry(self, now: float) -> None:
        """Note that an entry came for it."""
        self.since, self._slow_after, self._place = now, SLOW, None

    def news(self, where: QueuePlace | None, now: float) -> SystemMessage | None:
        """What is to be said now, None for nothing. where: its place in the queue."""
        if where is not None or self.loading:
            self.since = now  # nothing is computed for it yet
        return self._slow(now) if where is None else self._queued(where, now)

    def _queued(self, where: QueuePlace, now: float) -> SystemMessage | None:
        place = where.place if self.shows_place else 0
        if place == self._place and now - self._told < REPEAT:
            return None
        self._place, self._told = place, now
        seconds = None if where.seconds is None else round(where.seconds, 1)
        about = "" if seconds is None else f", about {seconds:g} s"
        head = f"place {place} in the queue" if place else "in the queue"
        return SystemMessage("queued", head + about, place or None, seconds)

    def _slow(self, now: float) -> SystemMessage | None:
        silent = now - self.since
        if silent < self._slow_after:
            return None
        self._slow_after = 2 * silent
        return SystemMessage("slow", f"nothing for {silent:.0f} s", seconds=round(silent, 1))


class HoldUps:
    """The streams of one connection whose requests asked for progress. Knows no clock: times are arguments."""

    def __init__(self, *, shows_places: bool = True) -> None:
        """shows_places: whether the client may know how many streams of others are before its own."""
        self._shows_places = shows_places
        self._streams: dict[StreamId, HoldUp] = {}

    def __bool__(self) -> bool:
        """True if there is any such stream."""
        return bool(self._streams)

    def watch(self, stream_id: StreamId, now: float) -> None:
        """Begin with a stream, as its request comes."""
        self._streams[stream_id] = HoldUp(now, shows_place=self._shows_places)

    def forget(self, stream_id: StreamId) -> None:
        """Say no more of a stream that has ended."""
        self._streams.pop(stream_id, None)

    def note_entry(self, stream_id: StreamId, now: float) -> None:
        """Note that an entry came for a stream."""
        if (hold_up := self._streams.get(stream_id)) is not None:
            hold_up.note_entry(now)

    def load(self, stream_id: StreamId, *, ended: bool) -> None:
        """Note how the load goes that a stream waits for."""
        if (hold_up := self._streams.get(stream_id)) is not None:
            hold_up.loading = not ended

    def excuse(self, now: float) -> None:
        """Note that entries wait to be read: until then no stream is slower than its reader."""
        for hold_up in self._streams.values():
            hold_up.since = now

    def news(self, handles: Mapping[StreamId, StreamHandle], now: float) -> Iterator[tuple[str, SystemMessage]]:
        """What is to be said now, by the stream's id. handles: of the streams that run."""
        for stream_id, hold_up in self._streams.items():
            if (message := hold_up.news(place_of(handles.get(stream_id)), now)) is not None:
                yield str(stream_id), message

    def draining(self, seconds: float) -> Iterator[tuple[str, SystemMessage]]:
        """What is to be said where the server shuts down, by the stream's id. seconds: until all are ended."""
        message = f"the server is shutting down: in {seconds:g} s what runs is ended"
        for stream_id in self._streams:
            yield str(stream_id), SystemMessage("draining", message, seconds=round(seconds, 1))
