"""What is known of a token beside its logprob: alternatives, rank, entropy, gap, heat."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.errors import LmtoolError
from lmtool.core.logprobs import heat
from lmtool.core.logprobs.distribution import Distribution, probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.runs import visible
from lmtool.trace.answers import alternatives_in

if TYPE_CHECKING:
    from lmtool.core.logprobs.distribution import Rank
    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.terminal.tui.event_store import Lines
    from lmtool.terminal.tui.state import State
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import Alternative

Uncertainty: TypeAlias = Literal["surprisal", "entropy", "margin"]
"""What makes a token uncertain: that it was unlikely; that many were possible; that two were nearly as likely."""
UNCERTAINTIES: tuple[Uncertainty, ...] = get_args(Uncertainty)
_CACHED_FRAMES = 512
"""Frames of which the alternatives stay in memory."""
_EARLIER = 64
"""Frames of an HTTP answer that are read again at most for one token: large answers come in parts."""


class Measures:
    """Rank, entropy and gap of the tokens of a state; alternatives are read from their frames again."""

    def __init__(self, state: State, lines: Lines) -> None:
        self.state = state
        self._lines = lines
        self._cache: dict[int, dict[int, tuple[Alternative, ...]]] = {}
        """By frame and row."""

    def distribution(self, row: int) -> Distribution[int | str | bytes]:
        """What is known of the distribution that a token was sampled from."""
        stream, logprob = self.state.stream_of(row), self.state.tokens.logprob(row)
        return Distribution.of(
            self.name(row), logprob, self._as_sent(row), stream.top_logprobs, unnormalised=stream.divided_by_temperature
        )

    def alternatives(self, row: int) -> tuple[Alternative, ...]:
        """A token and its alternatives, best first; empty where it had none, or its frame cannot be read again."""
        return self.distribution(row).alternatives if self._as_sent(row) else ()

    def _as_sent(self, row: int) -> tuple[Alternative, ...]:
        """As the server sent them; nothing for a scored token that nothing stands before."""
        stream, frame = self.state.stream_of(row), self.state.tokens.frames[row]
        if stream.kind == "SCORE" and row == stream.rows[0] and self.state.tokens.logprob(row) is None:
            return ()
        rows = self._cache.get(frame)
        if rows is None:
            if len(self._cache) >= _CACHED_FRAMES:
                self._cache.clear()
            rows = self._cache[frame] = self._read(frame)
        return rows.get(row, ())

    def _read(self, frame: int) -> dict[int, tuple[Alternative, ...]]:
        """Of a frame's tokens; where it only ends what earlier frames began, these are read as well."""
        state = self.state
        ids = state.tokens.ids
        rows = [row for row in state.tokens_of_frame(frame) if not state.texts.is_piece(ids[row])]
        if not rows:
            return {}
        stream = state.stream_of(rows[0])
        lists: list[tuple[Alternative, ...]] = []
        events: list[Event] = []
        place = frame
        try:
            while (place > stream.frame or not events) and len(events) < _EARLIER:
                events.insert(0, self._lines.event(place))
                lists = alternatives_in(events, stream)
                if len(lists) >= len(rows) or stream.api is None:
                    break
                place = state.frames.before(place, stream.connection)
        except LmtoolError:
            return {}
        return dict(zip(rows, lists, strict=False))

    def rank(self, row: int) -> Rank | None:
        """Rank of a token, or the least that it can be; None where nothing is known of it."""
        return self.distribution(row).rank

    def name(self, row: int) -> int | str | bytes:
        """What a token is called among alternatives: its id, or its text or bytes where there are no ids."""
        token = self.state.tokens.ids[row]
        return token if token >= 0 else self.state.texts.piece(token)

    def quote(self, alternative: int | str | bytes) -> str:
        """An alternative between quotes, harmless; bytes inside a character as `⟨f0 9f⟩`."""
        if isinstance(alternative, bytes):
            return f"⟨{alternative.hex(' ')}⟩"
        return visible(self.state.texts.quote(alternative) if isinstance(alternative, int) else repr(alternative))

    def quote_token(self, row: int) -> str:
        """A token between quotes, harmless."""
        return visible(self.state.texts.quote_row(row))

    def alternatives_text(self, row: int, most: int) -> str:
        """The first few alternatives of a token and their probabilities, without itself."""
        name = self.name(row)
        others = [one for one in self.alternatives(row)[:most] if one[0] != name]
        return "  ".join(f"{self.quote(one)} {format_probability(probability(p))}" for one, p in others)

    def entropy(self, row: int) -> tuple[float, float] | None:
        """Bounds of a token's entropy in bits; None where it had no alternatives, or they make no distribution."""
        return self.distribution(row).entropy(self.state.vocab_size) if self._as_sent(row) else None

    def margin(self, row: int) -> float | None:
        """How much likelier the best alternative was than the second, 0 to 1; None where fewer than two were sent."""
        top = self.distribution(row).top
        if len(top) < 2 or not self.distribution(row).is_normalised:
            return None
        return probability(top[0][1]) - probability(top[1][1])

    def uncertainty(self, row: int, by: Uncertainty) -> float | None:
        """A figure that is larger the less certain a token was: bits, or the margin below 0; None where not known."""
        if by == "margin":
            margin = self.margin(row)
            return None if margin is None else -margin
        return self.heat(row, by)

    def gap(self, row: int) -> float | None:
        """Milliseconds between a token and the stream's token before it; None for the first."""
        stream = self.state.stream_of(row)
        place = bisect_left(stream.rows, row)
        if not place:
            return None
        frames, times = self.state.tokens.frames, self.state.frames.times
        return (times[frames[row]] - times[frames[stream.rows[place - 1]]]) * 1000

    def heat(self, row: int, mode: HeatMode) -> float | None:
        """What a heat mode colours by, see `heat_value`; for `gap` milliseconds."""
        if mode == "gap":
            return self.gap(row)
        logprob = self.state.tokens.logprob(row)
        if mode == "stream" or (mode == "entropy" and not self._as_sent(row)):
            return None
        distribution = self.distribution(row) if mode in ("entropy", "rank") else None
        return heat.heat_value(mode, logprob, distribution, self.state.vocab_size)

    def style(self, row: int, mode: HeatMode) -> str:
        """Name of a token's style under a heat mode; empty where there is nothing to colour it by."""
        is_thought = self.state.is_thought(row)
        if mode == "stream" and not is_thought:
            return f"stream{self.state.tokens.streams[row] % len(heat.STREAM_COLORS)}"
        step = heat.step_of(mode, self.heat(row, mode))
        if is_thought:
            return "thought" if step is None else f"thought{step}"
        return "" if step is None else f"heat{step}"
