"""What the client of a recording did: its acts in order, and what it had received before each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.lmtp import frames
from lmtool.trace.events import Close, Done, Drop, Frame, Piece, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lmtool.trace.events import Event

Key: TypeAlias = "tuple[int, str]"
"""A connection, and what was answered on it: a command with a stream id, or `http`."""
Count: TypeAlias = "tuple[int, int]"
"""How many answers of a key have ended, and how many entries came since then; compared in this order."""
Move: TypeAlias = Frame | Request | Close | Drop


class Received:
    """What has come from a server, counted; `take` each event in order."""

    def __init__(self) -> None:
        self._counts: dict[Key, Count] = {}
        self._fresh: dict[Key, Count] = {}
        self._over: set[int] = set()

    def take(self, event: Event) -> None:
        """Count what an event brought."""
        if isinstance(event, Frame) and event.direction == "<":
            command, entries = event.answer()
            for entry in entries:
                if not {"progress", "ignored"} & entry.keys():  # what a request may get besides its answer
                    name = f"{command} {frames.stream_name(frames.stream_key(entry.get('stream_id')))}"
                    self._count((event.connection, name), ended=frames.ends(command, entry))
        elif isinstance(event, Done) or (isinstance(event, Piece) and event.kind == "sse"):
            self._count((event.connection, "http"), ended=isinstance(event, Done))
        elif isinstance(event, Close | Drop):
            self._over.add(event.connection)

    def _count(self, key: Key, *, ended: bool) -> None:
        done, since = self._counts.get(key, (0, 0))
        self._counts[key] = self._fresh[key] = (done + 1, 0) if ended else (done, since + 1)

    def fresh(self) -> Mapping[Key, Count]:
        """What was counted since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def over(self, connection: int) -> bool:
        """Whether a connection has ended."""
        return connection in self._over

    def missing(self, wanted: Mapping[Key, Count]) -> list[Key]:
        """What has not come so far as wanted, and still may."""
        counts = self._counts
        return [key for key, count in wanted.items() if counts.get(key, (0, 0)) < count and key[0] not in self._over]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a client did, or the end of what it did."""

    move: Move | None
    """A frame or request sent, a connection left (or, where the server left it, waited for); None: the end."""
    after: Mapping[Key, Count]
    """What had come since the act before: the act waits for as much, or for the end of its stream."""


def acts(events: Iterable[Event]) -> Iterator[Act]:
    """The acts of a recording's clients, all connections together, in the order in which they were recorded."""
    received = Received()
    for event in events:
        if isinstance(event, Request | Close | Drop) or (isinstance(event, Frame) and event.direction == ">"):
            yield Act(event, received.fresh())
        received.take(event)
    yield Act(None, received.fresh())
