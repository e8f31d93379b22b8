"""Figures of a token (alternatives, rank, entropy, gap, heat), and filters that test them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.errors import LmtoolError
from lmtool.core.logprobs import heat
from lmtool.core.logprobs.distribution import Distribution, bits, probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.runs import visible
from lmtool.trace.answers import alternatives_in
from lmtool.trace.stream_events import OutputEvent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lmtool.core.logprobs.distribution import Rank
    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.terminal.tui.event_store import Lines
    from lmtool.terminal.tui.state import State
    from lmtool.trace.events import Event
    from lmtool.trace.filter import Facts, Filter
    from lmtool.trace.stream_events import Alternative, Stream, StreamEvent

Uncertainty: TypeAlias = Literal["surprisal", "entropy", "margin"]
"""Measure of uncertainty: unlikely tokens, many possible tokens, or two nearly equal ones."""
UNCERTAINTIES: tuple[Uncertainty, ...] = get_args(Uncertainty)
_CACHED_FRAMES = 512
"""Frames whose alternatives are cached."""
_EARLIER = 64
"""Most frames of an HTTP answer read for one token, because large answers come in parts."""


class Measures:
    """Rank, entropy and gap of the tokens of a state; alternatives are read from their frames again."""

    def __init__(self, state: State, lines: Lines) -> None:
        self.state = state
        self._lines = lines
        self._cache: dict[int, dict[int, tuple[Alternative, ...]]] = {}
        """Alternatives by frame and row."""

    def distribution(self, row: int) -> Distribution[int | str | bytes]:
        """Known part of the distribution that a token was sampled from."""
        stream, logprob = self.state.stream_of(row), self.state.tokens.logprob(row)
        return Distribution.of(
            self.name(row), logprob, self._as_sent(row), stream.top_logprobs, unnormalised=stream.divided_by_temperature
        )

    def alternatives(self, row: int) -> tuple[Alternative, ...]:
        """A token and its alternatives, best first; empty if it had none, or if its frame cannot be read again."""
        return self.distribution(row).alternatives if self._as_sent(row) else ()

    def _as_sent(self, row: int) -> tuple[Alternative, ...]:
        """Alternatives as the server sent them; none for a scored token without context."""
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
        """Alternatives of a frame's tokens; earlier frames of the same answer are read if needed."""
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
        """Rank of a token, or its lower bound; None if unknown."""
        return self.distribution(row).rank

    def name(self, row: int) -> int | str | bytes:
        """Key of a token among alternatives: its id, or its text or bytes if there are no ids."""
        token = self.state.tokens.ids[row]
        return token if token >= 0 else self.state.texts.piece(token)

    def quote(self, alternative: int | str | bytes) -> str:
        """An alternative in quotes, without control characters; bytes inside a character as `⟨f0 9f⟩`."""
        if isinstance(alternative, bytes):
            return f"⟨{alternative.hex(' ')}⟩"
        return visible(self.state.texts.quote(alternative) if isinstance(alternative, int) else repr(alternative))

    def quote_token(self, row: int) -> str:
        """A token in quotes, without control characters."""
        return visible(self.state.texts.quote_row(row))

    def alternatives_text(self, row: int, most: int) -> str:
        """The first few alternatives of a token and their probabilities, without itself."""
        name = self.name(row)
        others = [one for one in self.alternatives(row)[:most] if one[0] != name]
        return "  ".join(f"{self.quote(one)} {format_probability(probability(p))}" for one, p in others)

    def entropy(self, row: int) -> tuple[float, float] | None:
        """Bounds of a token's entropy in bits; None if it had no alternatives, or if they are no distribution."""
        return self.distribution(row).entropy(self.state.vocab_size) if self._as_sent(row) else None

    def margin(self, row: int) -> float | None:
        """Lead of the best alternative over the second in probability, 0 to 1; None if fewer than two were sent."""
        top = self.distribution(row).top
        if len(top) < 2 or not self.distribution(row).is_normalised:
            return None
        return probability(top[0][1]) - probability(top[1][1])

    def uncertainty(self, row: int, by: Uncertainty) -> float | None:
        """Uncertainty of a token, larger for less certain ones: bits, or the negative margin; None if unknown."""
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
        """Value that a heat mode colours by, see `heat_value`; milliseconds for `gap`."""
        if mode == "gap":
            return self.gap(row)
        logprob = self.state.tokens.logprob(row)
        if mode == "stream" or (mode == "entropy" and not self._as_sent(row)):
            return None
        distribution = self.distribution(row) if mode in ("entropy", "rank") else None
        return heat.heat_value(mode, logprob, distribution, self.state.vocab_size)

    def style(self, row: int, mode: HeatMode) -> str:
        """Name of a token's style under a heat mode; empty if the value is unknown."""
        is_thought = self.state.is_thought(row)
        if mode == "stream" and not is_thought:
            return f"stream{self.state.tokens.streams[row] % len(heat.STREAM_COLORS)}"
        step = heat.step_of(mode, self.heat(row, mode))
        if is_thought:
            return "thought" if step is None else f"thought{step}"
        return "" if step is None else f"heat{step}"


COSTLY_ROWS, CHEAP_ROWS = 200, 2000
"""Tokens tested per drawing, with and without ranks, which are read from frames."""


class _Facts:
    """Facts that filters test of a stream and its tokens."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def sid(self) -> str:
        """Label."""
        return self._stream.label

    @property
    def conn(self) -> int:
        """Number of the connection."""
        return self._stream.connection

    @property
    def model(self) -> str | None:
        """Model of the request."""
        return self._stream.model

    @property
    def kind(self) -> str:
        """Kind in lower case."""
        return self._stream.kind.lower()


class StreamFacts(_Facts):
    """Facts of a stream as a whole."""

    __slots__ = ("state",)

    p: float | None = None
    bits: float | None = None
    rank: Rank | None = None
    gap: float | None = None
    tok: int | None = None
    text: str | None = None
    is_thought: bool | None = None

    def __init__(self, stream: Stream, phase: str) -> None:
        super().__init__(stream)
        self.state = phase
        """Its phase."""


class TokenFacts(_Facts):
    """Facts of a token; costly ones are computed on demand.

    Its stream's phase is the one known now, whatever moment is shown.
    """

    __slots__ = ("_measures", "_row")

    def __init__(self, measures: Measures, row: int) -> None:
        super().__init__(measures.state.stream_of(row))
        self._measures = measures
        self._row = row

    @property
    def state(self) -> str:
        """Phase of its stream."""
        state = self._measures.state
        return state.stream_of(self._row).phase(state.now, len(state.tokens))

    @property
    def p(self) -> float | None:
        """Probability."""
        logprob = self._measures.state.tokens.logprob(self._row)
        return None if logprob is None else probability(logprob)

    @property
    def bits(self) -> float | None:
        """Surprisal."""
        logprob = self._measures.state.tokens.logprob(self._row)
        return None if logprob is None else bits(logprob)

    @property
    def rank(self) -> Rank | None:
        """Rank, or the least that it can be."""
        return self._measures.rank(self._row)

    @property
    def gap(self) -> float | None:
        """Milliseconds since the stream's token before."""
        return self._measures.gap(self._row)

    @property
    def tok(self) -> int | None:
        """Token id."""
        token = self._measures.state.tokens.ids[self._row]
        return token if token >= 0 else None

    @property
    def text(self) -> str | None:
        """Text of the token on its own; None if unknown."""
        return self._measures.state.texts.text_or_none(self._row)

    @property
    def is_thought(self) -> bool:
        """True if it belongs to the model's thought before its answer."""
        return self._measures.state.is_thought(self._row)


class TokenFilter:
    """Tests each token once; starts again when a stream ends if the filter tests that."""

    def __init__(self, expression: Filter, measures: Measures) -> None:
        self._filter = expression
        self._measures = measures
        self._state = measures.state
        self._rows = array("i")
        self._of_streams: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        """Matching rows by stream."""
        self._done = 0
        """Tokens tested so far."""
        self._frames = 0
        self._ended = 0
        self._step = COSTLY_ROWS if "rank" in expression.names else CHEAP_ROWS

    def rows(self, tokens: int, stream: int | None = None) -> array[int]:
        """Matching rows among the first `tokens` of the log, in order, as far as `filter_more` has tested them.

        stream: only of this one.
        """
        self._start_again_if_needed()
        if len(self._state.tokens) - self._done <= self._step:
            self._filter_until(len(self._state.tokens))
        rows = self._rows if stream is None else self._of_streams[stream]
        return rows if tokens >= self._done else rows[: bisect_left(rows, tokens)]

    def passes(self, row: int) -> bool:
        """True if a token matches, as far as tested."""
        place = bisect_left(self._rows, row)
        return place < len(self._rows) and self._rows[place] == row

    def filter_more(self) -> bool:
        """Test more tokens; True if some are left. Call it between drawings."""
        self._start_again_if_needed()
        self._filter_until(min(len(self._state.tokens), self._done + 10 * self._step))
        return self._done < len(self._state.tokens)

    def _start_again_if_needed(self) -> None:
        if "state" not in self._filter.names or self._frames == len(self._state.frames):
            return
        self._frames = len(self._state.frames)
        ended = sum(stream.ended is not None for stream in self._state.streams)
        if ended != self._ended:
            self._ended = ended
            self._rows, self._done = array("i"), 0
            self._of_streams.clear()

    def _filter_until(self, row: int) -> None:
        streams = self._state.tokens.streams
        for one in range(self._done, row):
            if self._filter.token(TokenFacts(self._measures, one)):
                self._rows.append(one)
                self._of_streams[streams[one]].append(one)
        self._done = row


class Selection:
    """A filter for the steps of a trace whose events are in a state already.

    Call `facts` or `passes` with each step, in order: it counts tokens as the state does.
    """

    def __init__(self, expression: Filter, measures: Measures) -> None:
        """measures: of the state."""
        self.filter = expression
        self.measures = measures
        self._rows = 0

    def passes(self, step: StreamEvent) -> bool:
        """True if the filter matches this step as far as known now; a request is tested without its tokens."""
        return self.filter.token(self.facts(step))

    def facts(self, step: StreamEvent) -> Facts:
        """Facts of the step's token, or of its stream if it has none."""
        if isinstance(step, OutputEvent) and step.counts:
            self._rows += 1
            return TokenFacts(self.measures, self._rows - 1)
        stream = step.stream
        if stream.index < 0:
            return StreamFacts(stream, stream.phase_at(step.time, produced=False))
        return self.of_stream(stream.index)

    def of_stream(self, index: int) -> Facts:
        """Facts of a stream."""
        state = self.measures.state
        stream = state.streams[index]
        return StreamFacts(stream, stream.phase(state.now, len(state.tokens)))

    def passes_any(self, index: int) -> bool:
        """True if the filter matches a stream or any of its tokens."""
        rows, holds = self.measures.state.streams[index].rows, self.filter.token
        return holds(self.of_stream(index)) or any(holds(TokenFacts(self.measures, row)) for row in rows)


@contextmanager
def load_selection(path: str | Path, expression: Filter | None) -> Iterator[Selection | None]:
    """Selection by a filter from a trace file, which is read completely first; None without a filter.

    So how a stream ends is known at its first token. Raises `FileError`.
    """
    if expression is None:
        yield None
        return
    with closing(TraceFile(path)) as file:
        file.load(math.inf)
        yield Selection(expression, Measures(file.state, file))
