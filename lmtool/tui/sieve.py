"""The tokens that a filter lets through, found bit by bit."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.tui.facts import TokenFacts

if TYPE_CHECKING:
    from lmtool.trace.filter import Filter
    from lmtool.tui.measures import Measures


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
