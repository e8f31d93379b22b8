"""What a filter lets through: the tokens of a state, found bit by bit; the steps of a trace, one by one."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import bits, probability
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.measures import Measures
from lmtool.trace.stream_events import OutputEvent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lmtool.core.logprobs.distribution import Rank
    from lmtool.trace.filter import Facts, Filter
    from lmtool.trace.stream_events import Stream, StreamEvent

COSTLY_ROWS, CHEAP_ROWS = 200, 2000
"""Tokens that may be filtered for one drawing: ranks must be read from frames."""


class _Facts:
    """What filters know of a stream and of its tokens."""

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
    """A stream as filters know it, no token of it."""

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
    """A token as filters know it; what is costly is looked up when it is needed.

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
        """Text of the token on its own; None where it is not known."""
        return self._measures.state.texts.text_or_none(self._row)

    @property
    def is_thought(self) -> bool:
        """Whether it is of what the model thinks before its answer."""
        return self._measures.state.is_thought(self._row)


class TokenFilter:
    """Looks at each token once. Where the filter tests how streams end, it starts again when one has ended."""

    def __init__(self, expression: Filter, measures: Measures) -> None:
        self._filter = expression
        self._measures = measures
        self._state = measures.state
        self._rows = array("i")
        self._of_streams: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        """Those of each stream."""
        self._done = 0
        """Tokens that were looked at."""
        self._frames = 0
        self._ended = 0
        self._step = COSTLY_ROWS if "rank" in expression.names else CHEAP_ROWS

    def rows(self, tokens: int, stream: int | None = None) -> array[int]:
        """Those that pass among the first `tokens` of the log, in order, where `filter_more` has looked at them all.

        stream: only of this one.
        """
        self._start_again_if_needed()
        if len(self._state.tokens) - self._done <= self._step:
            self._filter_until(len(self._state.tokens))
        rows = self._rows if stream is None else self._of_streams[stream]
        return rows if tokens >= self._done else rows[: bisect_left(rows, tokens)]

    def passes(self, row: int) -> bool:
        """Whether a token is among those found so far."""
        place = bisect_left(self._rows, row)
        return place < len(self._rows) and self._rows[place] == row

    def filter_more(self) -> bool:
        """Look at more tokens; whether some are left. Call it between drawings."""
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
    """Which steps of a trace a filter lets through, where a state has their events already.

    Call `facts` or `passes` with each step, in order: it counts tokens as the state does.
    """

    def __init__(self, expression: Filter, measures: Measures) -> None:
        """measures: of the state."""
        self.filter = expression
        self.measures = measures
        self._rows = 0

    def passes(self, step: StreamEvent) -> bool:
        """Whether the filter holds for this step, as far as is known now. For a request: whatever its tokens are."""
        return self.filter.token(self.facts(step))

    def facts(self, step: StreamEvent) -> Facts:
        """What the filter tests: the token of the step, or the stream where it brings none."""
        if isinstance(step, OutputEvent) and step.counts:
            self._rows += 1
            return TokenFacts(self.measures, self._rows - 1)
        stream = step.stream
        if stream.index < 0:
            return StreamFacts(stream, stream.phase_at(step.time, produced=False))
        return self.of_stream(stream.index)

    def of_stream(self, index: int) -> Facts:
        """What the filter tests of a stream."""
        state = self.measures.state
        stream = state.streams[index]
        return StreamFacts(stream, stream.phase(state.now, len(state.tokens)))

    def passes_any(self, index: int) -> bool:
        """Whether the filter holds for a stream or any token of it."""
        rows, holds = self.measures.state.streams[index].rows, self.filter.token
        return holds(self.of_stream(index)) or any(holds(TokenFacts(self.measures, row)) for row in rows)


@contextmanager
def load_selection(path: str | Path, expression: Filter | None) -> Iterator[Selection | None]:
    """The selection by a filter from a trace file, which is read for it as a whole; None for no filter.

    So how a stream ends is known at its first token. Raises `FileError`.
    """
    if expression is None:
        yield None
        return
    with closing(TraceFile(path)) as file:
        file.load(math.inf)
        yield Selection(expression, Measures(file.state, file))
