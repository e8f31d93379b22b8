"""Figures of a trace, folded event by event in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import perplexity
from lmtool.trace.conversation import Began, Conversation
from lmtool.trace.events import Close, Drop, Frame, Open, Piece, Request

if TYPE_CHECKING:
    from lmtool.trace.conversation import Produced
    from lmtool.trace.events import Event

MOST_STREAMS = 10_000
"""Streams that are listed one by one; all count in the sums."""
_STEPS = 32
"""Classes of a histogram for each doubling of a value: percentiles are right within 2.2 %."""


class Histogram:
    """Percentiles of any number of positive values, in a few hundred counters."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0

    def add(self, value: float) -> None:
        """Take a value; 0 and less count as one nanounit."""
        self._counts[math.floor(math.log2(max(value, 1e-9)) * _STEPS)] += 1
        self.count += 1

    def percentile(self, share: float) -> float | None:
        """The value that this share of all does not exceed; None without any."""
        rank = math.ceil(share * self.count)
        for place in sorted(self._counts):
            rank -= self._counts[place]
            if rank <= 0:
                return float(2 ** ((place + 0.5) / _STEPS))
        return None


@dataclass(slots=True)
class StreamFigures:
    """One request and its answer. Times in seconds."""

    stream: str
    kind: str
    model: str | None
    prompt_length: int | None
    began: float
    tokens: int = 0
    """Tokens, or pieces of text where the protocol has no tokens."""
    first: float | None = None
    """Time of the first one."""
    last: float | None = None
    logprob: float = 0.0
    """Sum over all tokens that had one, in nats."""
    with_logprob: int = 0
    unconditioned: bool = False
    """Whether its first token is scored with nothing before it: the 0 that stands there is no logprob (LMTP, SCO-2)."""
    finish_reason: str | None = None
    error: str | None = None
    gaps: Histogram = field(default_factory=Histogram)
    """Between arrivals; tokens of one frame arrived together."""

    def add(self, step: Produced) -> None:
        """Take the next output."""
        output = step.output
        self.finish_reason = self.finish_reason or output.finish_reason
        self.error = self.error or output.error
        if output.token is None and not output.text:
            return
        self.tokens += 1
        unknown = self.unconditioned and self.tokens == 1 and output.logprob == 0
        if self.first is None:
            self.first = step.time
        elif self.last is not None and step.time > self.last:
            self.gaps.add(step.time - self.last)
        self.last = step.time
        if output.logprob is not None and math.isfinite(output.logprob) and not unknown:
            self.logprob += output.logprob
            self.with_logprob += 1

    def as_json(self) -> dict[str, object]:
        """The figures as one object; what is not known is null, times are in milliseconds."""
        later = self.last - self.first if self.first is not None and self.last is not None else 0.0
        ppl = perplexity(self.logprob, self.with_logprob)
        return {
            "stream": self.stream,
            "kind": self.kind,
            "model": self.model,
            "prompt_length": self.prompt_length,
            "tokens": self.tokens,
            "ttft_ms": None if self.first is None else round((self.first - self.began) * 1000, 3),
            "tokens_per_second": round((self.tokens - 1) / later, 1) if later > 0 else None,
            "gap_p50_ms": _ms(self.gaps.percentile(0.5)),
            "gap_p99_ms": _ms(self.gaps.percentile(0.99)),
            "perplexity": round(ppl, 3) if ppl is not None and math.isfinite(ppl) else None,
            "finish_reason": self.finish_reason,
            "error": self.error,
        }


class TraceFigures:
    """All figures of a trace; call `add` with each event in order."""

    def __init__(self) -> None:
        self._conversation = Conversation()
        self.streams: list[StreamFigures] = []
        """The first `MOST_STREAMS`, in order of their requests."""
        self._running: dict[str, StreamFigures] = {}
        self.counts: Counter[str] = Counter()
        """connections, drops, frames in each direction, streams, tokens, ..."""
        self.gaps = Histogram()
        self.duration = 0.0

    def add(self, event: Event) -> None:
        """Take the next event."""
        self.duration = event.time
        self.counts["events"] += 1
        self._count(event)
        for step in self._conversation.follow(event):
            if isinstance(step, Began):
                self._begin(step)
            else:
                self._produced(step)

    def _count(self, event: Event) -> None:
        if isinstance(event, Frame):
            self.counts["client_frames" if event.direction == ">" else "server_frames"] += 1
        elif isinstance(event, Piece):
            self.counts["server_frames"] += 1
        elif isinstance(event, Request):
            self.counts["client_frames"] += 1
        elif isinstance(event, Open | Drop | Close):
            self.counts[{"Open": "connections", "Drop": "drops", "Close": "closes"}[type(event).__name__]] += 1

    def _begin(self, step: Began) -> None:
        figures = StreamFigures(step.stream, step.kind, step.model, step.prompt_length, step.time)
        figures.unconditioned = step.kind == "SCORE" and step.payload.get("prompt") in ([], "")
        self.counts["streams"] += 1
        self._running[step.stream] = figures
        if len(self.streams) < MOST_STREAMS:
            self.streams.append(figures)

    def _produced(self, step: Produced) -> None:
        figures = self._running.get(step.stream)
        if figures is None:
            self.counts["outputs_of_no_stream"] += 1
            return
        before = figures.last
        figures.add(step)
        if before is not None and figures.last is not None and figures.last > before:
            self.gaps.add(figures.last - before)
        self.counts["tokens"] += step.output.token is not None or bool(step.output.text)
        if step.output.last:
            self.counts["failed_streams"] += step.output.error is not None
            del self._running[step.stream]

    def as_json(self) -> dict[str, object]:
        """Sums and streams as one object."""
        names = ("connections", "drops", "streams", "failed_streams", "tokens", "client_frames", "server_frames")
        return {
            "duration_s": round(self.duration, 6),
            **{name: self.counts[name] for name in ("events", *names)},
            "outputs_of_no_stream": self.counts["outputs_of_no_stream"],
            "unfinished_streams": len([s for s in self._running.values() if s.kind != "MODEL_INFO"]),
            "gap_p50_ms": _ms(self.gaps.percentile(0.5)),
            "gap_p99_ms": _ms(self.gaps.percentile(0.99)),
            "listed": [figures.as_json() for figures in self.streams],
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
