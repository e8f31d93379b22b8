"""When the tokens of one request came, and what many such records amount to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.bench.statistics import percentile
from lmtool.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTS = (50, 90, 99)


@dataclass(slots=True)
class Record:
    """One request; times in seconds of one clock."""

    began: float
    stamps: list[float] = field(default_factory=list)
    """When each token came; those of one message share a time."""
    tokens: int = 0
    """As the server counts them, where it does; else as many as stamps."""
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.stamps[0] - self.began

    @property
    def e2el(self) -> float:
        """Time to the last token."""
        return self.stamps[-1] - self.began

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
        """Whether it got tokens and no error."""
        return self.error is None and bool(self.stamps)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a request must keep to count as well served; seconds. None: anything goes."""

    ttft: float | None = None
    itl: float | None = None
    """For the 99th percentile of its gaps."""

    def kept_by(self, record: Record) -> bool:
        """Whether a record keeps it."""
        if self.ttft is not None and record.ttft > self.ttft:
            return False
        return self.itl is None or not record.gaps or percentile(record.gaps, 99) <= self.itl


def summary(records: Sequence[Record], duration: float, goal: Goal, cpu_seconds: float | None) -> dict[str, Any]:
    """The numbers of one phase: `ttft_ms`, `tpot_ms`, `itl_ms`, `e2el_ms`, each with p50, p90 and p99, and rates.

    duration: seconds from the first request to the last token. cpu_seconds: of the server meanwhile; None leaves
    `tokens_per_cpu_s` out.
    """
    done = [record for record in records if record.complete]
    tokens = sum(record.tokens for record in done)
    told: dict[str, Any] = {
        "completed": len(done),
        "failed": len(records) - len(done),
        "duration_s": duration,
        "output_tokens": tokens,
        "output_throughput": tokens / duration,
        "request_throughput": len(done) / duration,
        "goodput": sum(record.tokens for record in done if goal.kept_by(record)) / duration,
    }
    if cpu_seconds:
        told["tokens_per_cpu_s"] = tokens / cpu_seconds
    series = {
        "ttft_ms": [record.ttft for record in done],
        "tpot_ms": [record.tpot for record in done if record.tpot is not None],
        "itl_ms": [gap for record in done for gap in record.gaps],
        "e2el_ms": [record.e2el for record in done],
    }
    for name, values in series.items():
        if values:
            told[name] = {f"p{percent}": 1000 * percentile(values, percent) for percent in PERCENTS}
    return told


def checked(records: Sequence[Record]) -> Sequence[Record]:
    """The records. Raises `ServerError` when every request failed."""
    if records and not any(record.complete for record in records):
        errors = [record.error for record in records if record.error]
        raise ServerError(f"every request failed: {errors[0] if errors else 'no token came'}")
    return records
