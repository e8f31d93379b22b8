"""Streams and tokens as the filter asks about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import bits, probability

if TYPE_CHECKING:
    from lmtool.logprobs.distribution import Rank
    from lmtool.trace.stream_events import Stream
    from lmtool.tui.measures import Measures


class _OfStream:
    """What a stream and its tokens have in common."""

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
        """Model asked for."""
        return self._stream.model

    @property
    def kind(self) -> str:
        """Kind in lower case."""
        return self._stream.kind.lower()


class StreamFacts(_OfStream):
    """A stream, no token of it."""

    __slots__ = ("_phase",)

    p: float | None = None
    bits: float | None = None
    rank: Rank | None = None
    gap: float | None = None
    tok: int | None = None
    text: str | None = None

    def __init__(self, stream: Stream, phase: str) -> None:
        super().__init__(stream)
        self._phase = phase

    @property
    def state(self) -> str:
        """What it does."""
        return self._phase


class TokenFacts(_OfStream):
    """A token; what is costly is looked up when it is asked for."""

    __slots__ = ("_measures", "_of", "_row")

    def __init__(self, measures: Measures, row: int) -> None:
        self._of = measures.state.streams[measures.state.tokens.streams[row]]
        super().__init__(self._of)
        self._measures = measures
        self._row = row

    @property
    def state(self) -> str:
        """What its stream does, or how it ended, as far as is known now; whatever moment is seen."""
        state = self._measures.state
        return self._of.phase(state.now, len(state.tokens))

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
        """Text of the token on its own; None where nobody told it."""
        return self._measures.state.texts.known(self._row)
