"""Columns of all frames and of all tokens, in order of arrival."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OUT, IN, OTHER = 0, 1, 2
"""Directions: client to server, server to client, neither (a connection begins or ends, a mark, ...)."""
ARROWS = (">", "<", "·")
NO_ID = -1
"""Ids below it are texts that came without an id (`Texts.intern`)."""


class FrameLog:
    """Columns with one row an event of the trace, all kinds but vocabulary and blobs. 29 bytes each."""

    __slots__ = ("connections", "directions", "first_tokens", "offsets", "times")

    def __init__(self) -> None:
        self.times = array("d")
        """Seconds since the trace began, never falling."""
        self.offsets = array("Q")
        """Byte of the trace at which the event's line begins."""
        self.connections = array("q")
        self.directions = array("b")
        self.first_tokens = array("i")
        """Tokens before it."""

    def __len__(self) -> int:
        return len(self.times)

    @property
    def end(self) -> float:
        """Time of the last one; 0 without any."""
        return self.times[-1] if self.times else 0.0

    def add(self, time: float, offset: int, connection: int, direction: int, tokens: int) -> int:
        """Add the next event; its row. tokens: those before it."""
        self.extend([time], [offset], [connection], direction, [tokens])
        return len(self.times) - 1

    def extend(
        self,
        times: list[float],
        offsets: Sequence[int],
        connections: Sequence[int],
        direction: int,
        first_tokens: Sequence[int],
    ) -> None:
        """Add the next events, all of one direction. A time before the last one's counts as the last one's."""
        ordered = sorted(times)
        if ordered != times or (ordered and ordered[0] < self.end):
            times = list(accumulate(times, max, initial=self.end))[1:]
        self.times.extend(times)
        self.offsets.extend(offsets)
        self.connections.extend(connections)
        self.directions.frombytes(bytes((direction,)) * len(times))
        self.first_tokens.extend(first_tokens)

    def until(self, moment: float) -> int:
        """Number of events up to a moment."""
        return bisect_right(self.times, moment)

    def before(self, frame: int, connection: int) -> int:
        """Index of the connection's last event before this one; -1 if there is none."""
        return next((i for i in range(frame - 1, -1, -1) if self.connections[i] == connection), -1)


class TokenLog:
    """Columns with one row a token. Twenty bytes each: alternatives stay in the frame."""

    __slots__ = ("frames", "ids", "logprobs", "streams")

    def __init__(self) -> None:
        self.streams = array("i")
        """Index into `State.streams`."""
        self.ids = array("i")
        """Token id; below `NO_ID` a text that had no id, see `Texts`."""
        self.logprobs = array("d")
        """Logprobs in nats; nan if none was sent."""
        self.frames = array("i")
        """Index into `State.frames` of the frame that carried the token."""

    def __len__(self) -> int:
        return len(self.ids)

    def extend(
        self, streams: Iterable[int], ids: Iterable[int], logprobs: Iterable[float], frames: Iterable[int]
    ) -> None:
        """Add the next tokens: as many of each."""
        self.streams.extend(streams)
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.frames.extend(frames)

    def logprob(self, row: int) -> float | None:
        """The token's logprob in nats; None if none was sent."""
        value = self.logprobs[row]
        return None if math.isnan(value) else value
