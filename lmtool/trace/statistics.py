"""Statistics of a trace, computed event by event in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import perplexity
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.trace.answers import Answers
from lmtool.trace.events import Close, Drop, Frame, Open, Piece, Request
from lmtool.trace.reader import Run
from lmtool.trace.stream_events import RequestStarted, Stream, new_stream

if TYPE_CHECKING:
    from lmtool.trace.events import Event
    from lmtool.trace.reader import Scan, TokenLine

MOST_STREAMS = 10_000
"""Streams that are listed individually; all count in the sums."""
_STEPS = 32
"""Histogram classes per doubling of a value: percentiles are accurate within 2.2 %."""


class Histogram:
    """Percentiles of any number of positive values, in a few hundred counters."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value; 0 and less count as one nanounit."""
        self._counts[math.floor(math.log2(max(value, 1e-9)) * _STEPS)] += 1
        self.count += 1

    def percentile(self, share: float) -> float | None:
        """Value that this share of all values does not exceed; None without values."""
        rank = math.ceil(share * self.count)
        for place in sorted(self._counts):
            rank -= self._counts[place]
            if rank <= 0:
                return float(2 ** ((place + 0.5) / _STEPS))
        return None


@dataclass(slots=True, eq=False)
class StreamFigures(Stream):
    """Statistics of one request and its answer, or of one choice. Times in seconds."""

    request: str = ""
    """`GENERATE`, `SCORE`, `MODEL_INFO`, or an HTTP method and path."""
    prompt_tokens: int | None = None
    """Length of a prompt of ids; for other prompts the server's usage counts."""
    has_choices: bool = False
    """True if its usage includes other choices."""
    tokens: int = 0
    """Tokens, or pieces of text if the protocol has no tokens."""
    pieces: int = 0
    """Tokens that are pieces of text instead: the server sent no tokens."""
    first: float | None = None
    """Time of the first token."""
    last: float | None = None
    logprob: float = 0.0
    """Sum over all tokens with a logprob, in nats."""
    with_logprob: int = 0
    ending_counted: bool = False
    """True if its ending is included in the sums."""
    gaps: Histogram = field(default_factory=Histogram)
    """Gaps between arrivals; tokens of one frame arrive together."""

    def add(self, time: float, logprob: float | None, *, is_piece: bool) -> float:
        """Count the next token or piece of text; returns seconds since the previous one, 0 for the first."""
        self.tokens += 1
        self.pieces += is_piece
        gap = 0.0 if self.last is None else time - self.last
        if self.first is None:
            self.first = time
        elif gap > 0:
            self.gaps.add(gap)
        self.last = time
        if logprob is not None:
            self.logprob += logprob
            self.with_logprob += 1
        return gap

    def as_json(self) -> dict[str, object]:
        """The statistics as an object; unknown values are null, times are in milliseconds."""
        later = self.last - self.first if self.first is not None and self.last is not None else 0.0
        ppl = perplexity(self.logprob, self.with_logprob)
        usage = TokenUsage() if self.usage is None else self.usage
        return {
            "stream": self.label,
            "kind": self.request,
            "generates": bool(self.kind),
            "model": self.model,
            "prompt_tokens": self.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
            "completion_tokens": None if self.has_choices else usage.completion_tokens,
            "tokens": self.tokens,
            "pieces": self.pieces,
            "ttft_ms": None if self.first is None else round((self.first - self.started_at) * 1000, 3),
            "tokens_per_second": round((self.tokens - 1) / later, 1) if later > 0 else None,
            "gap_p50_ms": _ms(self.gaps.percentile(0.5)),
            "gap_p99_ms": _ms(self.gaps.percentile(0.99)),
            "perplexity": round(ppl, 3) if ppl is not None and math.isfinite(ppl) else None,
            "finish_reason": self.finish_reason,
            "error": None if self.cut else self.error,
        }


class TraceFigures:
    """Statistics of a trace; call `add` with each event in order."""

    def __init__(self) -> None:
        self._answers = Answers(self._new_stream)
        self.streams: list[StreamFigures] = []
        """The first `MOST_STREAMS` streams in order of their start, including requests that generate nothing."""
        self.counts: Counter[str] = Counter()
        """connections, drops, frames in each direction, streams, tokens, ..."""
        self.gaps = Histogram()
        self.duration = 0.0

    def read(self, scan: Scan) -> None:
        """Add a whole file; then its reader's `ending` is known. Raises `FileError`."""
        for items in scan.blocks():
            for item in items:
                if isinstance(item, Run):
                    for line in item.lines:
                        self.add_tokens(line)
                else:
                    self.add(item[1])
        for _ in scan.verify():
            pass

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.duration = event.time
        self.counts["events"] += 1
        if isinstance(event, Frame | Piece | Request):
            is_sent = isinstance(event, Request) or (isinstance(event, Frame) and event.direction == ">")
            self.counts["client_frames" if is_sent else "server_frames"] += 1
        elif isinstance(event, Open | Drop | Close):
            self.counts[{"Open": "connections", "Drop": "drops", "Close": "closes"}[type(event).__name__]] += 1
        for step in self._answers.follow(event):
            if isinstance(step, RequestStarted):
                self.counts["requests"] += 1
            else:
                assert isinstance(step.stream, StreamFigures)
                if step.counts:
                    self._add(step.stream, event.time, step.logprob, is_piece=step.is_piece)
                if step.last:
                    self._end(step.stream)

    def add_tokens(self, line: TokenLine) -> None:
        """Add the next event, a TOKEN frame as `Scan` reads it."""
        self.duration = line.time
        self.counts["events"] += 1
        self.counts["server_frames"] += 1
        owners = self._answers.owners(line.time, line.connection, line.entries)
        for entry, figures in zip(line.entries, owners, strict=True):
            if entry.counts:
                self._add(figures, line.time, figures.logprob_of_next(entry.logprob), is_piece=False)
            if entry.last:
                self._end(figures)

    def _new_stream(self, started: RequestStarted, index: int, choice: int) -> StreamFigures:
        more = {"request": started.kind, "prompt_tokens": started.prompt_tokens}
        figures = new_stream(StreamFigures, started, index, choice, **more)
        if choice:
            assert isinstance(started.stream, StreamFigures)
            started.stream.has_choices = True
        self.counts["streams"] += index >= 0
        if len(self.streams) < MOST_STREAMS:
            self.streams.append(figures)
        return figures

    def _add(self, figures: StreamFigures, time: float, logprob: float | None, *, is_piece: bool) -> None:
        self.counts["outputs_of_no_stream"] += figures.ending_counted or not figures.has_request
        self.counts["pieces" if is_piece else "tokens"] += 1
        gap = figures.add(time, logprob, is_piece=is_piece)
        if gap > 0:
            self.gaps.add(gap)

    def _end(self, figures: StreamFigures) -> None:
        if not figures.ending_counted and figures.index >= 0:
            figures.ending_counted = True
            self.counts["finished_streams"] += not figures.cut
            self.counts["failed_streams"] += figures.error is not None and not figures.cut

    def as_json(self) -> dict[str, object]:
        """Sums and streams as an object."""
        sums = ("connections", "drops", "requests", "streams", "failed_streams", "tokens", "pieces")
        names = ("events", *sums, "client_frames", "server_frames", "outputs_of_no_stream")
        return {
            "duration_s": round(self.duration, 6),
            **{name: self.counts[name] for name in names},
            "unfinished_streams": self.counts["streams"] - self.counts["finished_streams"],
            "gap_p50_ms": _ms(self.gaps.percentile(0.5)),
            "gap_p99_ms": _ms(self.gaps.percentile(0.99)),
            "listed": [figures.as_json() for figures in self.streams],
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
