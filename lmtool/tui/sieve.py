"""What a filter lets through: the tokens of a state, found bit by bit; the steps of a trace, one by one."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from lmtool.trace.stream_events import OutputEvent
from lmtool.tui.facts import StreamFacts, TokenFacts
from lmtool.tui.lines import TraceFile
from lmtool.tui.measures import Measures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lmtool.trace.filter import Facts, Filter
    from lmtool.trace.stream_events import StreamEvent


class Sieve:
    """Looks at each token once. Where the filter asks how streams end, it begins anew when one has ended."""

    def __init__(self, chosen: Filter, stream: int | None, measures: Measures) -> None:
        """stream: the only one whose tokens may pass."""
        self._filter = chosen
        self._stream = stream
        self._measures = measures
        self._state = measures.state
        self._rows = array("i")
        self._looked = 0
        self._frames = 0
        self._ended = 0
        self._step = 200 if "rank" in chosen.names else 2000
        """Tokens that may be looked at for one drawing: ranks must be read from frames."""

    def rows(self, seen: int) -> array[int]:
        """Those found among the first `seen` tokens of the log; all that pass, unless `go_on` has more to do."""
        self._begin_anew()
        if len(self._state.tokens) - self._looked <= self._step:
            self._look(len(self._state.tokens))
        return self._rows if seen >= self._looked else self._rows[: bisect_left(self._rows, seen)]

    def go_on(self) -> bool:
        """Look at more tokens; whether some are left. Call it between drawings."""
        self._begin_anew()
        self._look(min(len(self._state.tokens), self._looked + 10 * self._step))
        return self._looked < len(self._state.tokens)

    def _begin_anew(self) -> None:
        if "state" not in self._filter.names or self._frames == len(self._state.frames):
            return
        self._frames = len(self._state.frames)
        ended = sum(stream.ended is not None for stream in self._state.streams)
        if ended != self._ended:
            self._ended = ended
            self._rows, self._looked = array("i"), 0

    def _look(self, until: int) -> None:
        streams = self._state.tokens.streams
        for row in range(self._looked, until):
            if self._stream is not None and streams[row] != self._stream:
                continue
            if self._filter.token(TokenFacts(self._measures, row)):
                self._rows.append(row)
        self._looked = until


class Selection:
    """Which steps of a trace a filter lets through, where a state has taken their events already.

    Call `facts` or `wants` with each step, in order: it counts tokens as the state does.
    """

    def __init__(self, chosen: Filter, measures: Measures) -> None:
        """measures: of the state."""
        self.filter = chosen
        self.measures = measures
        self._rows = 0

    def wants(self, step: StreamEvent) -> bool:
        """Whether the filter holds for this step, as far as is known now. For a request: whatever its tokens are."""
        return self.filter.token(self.facts(step))

    def facts(self, step: StreamEvent) -> Facts:
        """What the filter asks about: the token of the step, or the stream where it brings none."""
        if isinstance(step, OutputEvent) and step.counts:
            self._rows += 1
            return TokenFacts(self.measures, self._rows - 1)
        stream = step.stream
        if stream.index < 0:
            return StreamFacts(stream, stream.phase_at(step.time, produced=False))
        return self.of_stream(stream.index)

    def of_stream(self, index: int) -> Facts:
        """What the filter asks about a stream."""
        state = self.measures.state
        stream = state.streams[index]
        return StreamFacts(stream, stream.phase(state.now, len(state.tokens)))

    def wants_any(self, index: int) -> bool:
        """Whether the filter holds for a stream or any token of it."""
        rows = self.measures.state.streams[index].rows
        holds = self.filter.token
        return holds(self.of_stream(index)) or any(holds(TokenFacts(self.measures, row)) for row in rows)


@contextmanager
def load_selection(path: str | Path, chosen: Filter | None) -> Iterator[Selection | None]:
    """The selection by a filter from a trace file, which is read for it as a whole; None for no filter.

    So how a stream ends is known at its first token. Raises `FileError`.
    """
    if chosen is None:
        yield None
        return
    with closing(TraceFile(path)) as file:
        file.load(math.inf)
        yield Selection(chosen, Measures(file.state, file))
