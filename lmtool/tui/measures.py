"""What can be said of a token beside its logprob: alternatives, rank, entropy, gap."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.trace.answers import alternatives_in
from lmtool.tui import heat

if TYPE_CHECKING:
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import Alternative
    from lmtool.tui.heat import HeatMode
    from lmtool.tui.lines import Lines
    from lmtool.tui.state import State

_KEPT = 512
"""Frames of which the alternatives are held in memory."""
_EARLIER = 64
"""Frames of an HTTP answer that are read again at most for one token: large answers come in parts."""


class Measures:
    """Of the tokens of a state; alternatives are read from their frames again."""

    def __init__(self, state: State, lines: Lines) -> None:
        self.state = state
        self._lines = lines
        self._kept: dict[int, dict[int, tuple[Alternative, ...]]] = {}
        """By frame and row."""

    def alternatives(self, row: int) -> tuple[Alternative, ...]:
        """Alternatives of a token, best first; empty where its frame cannot be read again."""
        frame = self.state.tokens.frames[row]
        known = self._kept.get(frame)
        if known is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            known = self._kept[frame] = self._read(frame)
        return known.get(row, ())

    def _read(self, frame: int) -> dict[int, tuple[Alternative, ...]]:
        """Of a frame's tokens; where it only ends what earlier frames began, these are read as well."""
        state = self.state
        ids = state.tokens.ids
        rows = [row for row in state.tokens_of_frame(frame) if not state.texts.is_piece(ids[row])]
        if not rows:
            return {}
        stream = state.streams[state.tokens.streams[rows[0]]]
        found: list[tuple[Alternative, ...]] = []
        events: list[Event] = []
        place = frame
        try:
            while place > stream.frame and len(events) < _EARLIER:
                events.insert(0, self._lines.event(place))
                found = alternatives_in(events, stream)
                if len(found) >= len(rows) or stream.api is None:
                    break
                place = state.frames.before(place, stream.connection)
        except LmtoolError:
            return {}
        return dict(zip(rows, found, strict=False))

    def rank(self, row: int) -> int | None:
        """Place of a token among its alternatives, from 1; None where it came without any.

        A token that is not among them has the first place behind those that are likelier.
        """
        logprob, top = self.state.tokens.logprob(row), self.alternatives(row)
        if logprob is None or not top:
            return None
        token = self.name(row)
        return 1 + sum(p > logprob + 1e-6 and one != token for one, p in top)

    def name(self, row: int) -> int | str | bytes:
        """What a token is called among alternatives: its id, or its text or bytes where there are no ids."""
        token = self.state.tokens.ids[row]
        return token if token >= 0 else self.state.piece(token)

    def entropy(self, row: int) -> tuple[float, float] | None:
        """Bounds of a token's entropy in bits."""
        return heat.entropy_bounds([p for _, p in self.alternatives(row)], self.state.vocab_size)

    def gap(self, row: int) -> float | None:
        """Milliseconds between a token and the stream's token before it; None for the first."""
        stream = self.state.streams[self.state.tokens.streams[row]]
        place = bisect_left(stream.rows, row)
        if not place:
            return None
        frames, times = self.state.tokens.frames, self.state.frames.times
        return (times[frames[row]] - times[frames[stream.rows[place - 1]]]) * 1000

    def of(self, row: int, mode: HeatMode) -> float | None:
        """What a heat mode colours by: a probability, bits, the upper bound of the entropy, a rank, milliseconds."""
        if mode == "rank":
            return self.rank(row)
        if mode == "gap":
            return self.gap(row)
        if mode == "entropy":
            bounds = self.entropy(row)
            return None if bounds is None else bounds[1]
        logprob = self.state.tokens.logprob(row)
        if logprob is None or mode == "stream":
            return None
        return math.exp(min(logprob, 0.0)) if mode == "prob" else heat.bits(logprob)

    def style(self, row: int, mode: HeatMode) -> str:
        """Name of a token's style under a heat mode; empty where there is nothing to colour it by."""
        if mode == "stream":
            return f"stream{self.state.tokens.streams[row] % len(heat.STREAM_COLORS)}"
        step = heat.step_of(mode, self.of(row, mode))
        return "" if step is None else f"heat{step}"
