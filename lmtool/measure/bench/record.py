"""Token times of one request, and statistics of many: percentiles, spreads, rates, goodput."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over several rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest. Raises ValueError for no values."""
    return Spread(percentile(values, 50), min(values), max(values))


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which `percent` of them lie, interpolated between neighbours. Raises ValueError for no values."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class Record:
    """One request; times are seconds of one clock."""

    start: float
    stamps: list[float] = field(default_factory=list)
    """Arrival of each token; those of one message share a time."""
    tokens: int = 0
    """As the server counts them; else the number of stamps."""
    error: str | None = None
    prompt_tokens: int | None = None
    """As the server counts them; None where it does not."""

    def finish(self, now: float) -> None:
        """Note the end of a whole answer, which stands for its first token where no token or text arrived."""
        self.tokens = self.tokens or len(self.stamps)
        if self.error is None and not self.stamps:
            self.stamps.append(now)

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.stamps[0] - self.start

    @property
    def e2el(self) -> float:
        """Time to the last token."""
        return self.stamps[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Time per token after the first; None of one token."""
        return (self.stamps[-1] - self.stamps[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Times between neighbouring tokens."""
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)]

    @property
    def complete(self) -> bool:
        """True if the answer ended without an error."""
        return self.error is None and bool(self.stamps)


@dataclass(frozen=True, slots=True)
class Goal:
    """Latency goals of goodput, in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    """Time per token after the first."""

    def is_met_by(self, record: Record) -> bool:
        """True if a request counts towards goodput."""
        if self.ttft is not None and record.ttft > self.ttft:
            return False
        return self.tpot is None or record.tpot is None or record.tpot <= self.tpot


def summary(records: Sequence[Record], duration: float, goal: Goal, cpu_seconds: float | None) -> dict[str, Any]:
    """The figures of one phase: `ttft_ms`, `tpot_ms`, `itl_ms`, `e2el_ms`, each with p50, p90 and p99, and rates.

    `errors`: each reason for which requests failed, with their number, the most frequent first.
    duration: seconds from the first request to the last token. cpu_seconds: of the server meanwhile; None leaves
    `tokens_per_cpu_s` out.
    """
    done = [record for record in records if record.complete]
    tokens = sum(record.tokens for record in done)
    errors = Counter(str(record.error) for record in records if not record.complete)
    figures: dict[str, Any] = {
        "completed": len(done),
        "failed": len(records) - len(done),
        "errors": dict(errors.most_common()),
        "duration_s": duration,
        "output_tokens": tokens,
        "output_throughput": tokens / duration,
        "request_throughput": len(done) / duration,
        "goodput": sum(record.tokens for record in done if goal.is_met_by(record)) / duration,
    }
    if prompts := [record.prompt_tokens for record in done if record.prompt_tokens is not None]:
        figures["prompt_tokens"] = percentile(prompts, 50)
    if cpu_seconds:
        figures["tokens_per_cpu_s"] = tokens / cpu_seconds
    series = {
        "ttft_ms": [record.ttft for record in done],
        "tpot_ms": [record.tpot for record in done if record.tpot is not None],
        "itl_ms": [gap for record in done for gap in record.gaps],
        "e2el_ms": [record.e2el for record in done],
    }
    for name, values in series.items():
        if values:
            figures[name] = {f"p{percent}": 1000 * percentile(values, percent) for percent in PERCENTS}
    return figures


def require_success(records: Sequence[Record]) -> Sequence[Record]:
    """The records. Raises `ServerError` when every request failed."""
    if records and not any(record.complete for record in records):
        errors = [record.error for record in records if record.error]
        raise ServerError(f"every request failed: {errors[0]}")
    return records
