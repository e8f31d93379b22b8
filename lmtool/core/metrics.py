"""Counters, gauges and histograms, and Prometheus' text of them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STANDARD = "process_"
"""Begins names that every program's metrics have; they are no program's own."""


class MetricFamily(NamedTuple):
    """One metric in the terms of Prometheus: its samples share a name, a kind and a sentence."""

    name: str
    """Without the prefix `lmtool_`."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[str, float]]
    """What follows the name, such as `{name="value"}` or nothing, of a histogram behind a suffix; and a number each."""

    @classmethod
    def gauge(cls, name: str, help_text: str, value: float) -> MetricFamily:
        """A number of now."""
        return cls(name, "gauge", help_text, (("", value),))

    @classmethod
    def counter(cls, name: str, help_text: str, value: float) -> MetricFamily:
        """A number that only grows."""
        return cls(name, "counter", help_text, (("", value),))

    @classmethod
    def histogram(cls, name: str, help_text: str, histograms: Iterable[tuple[str, Histogram]]) -> MetricFamily:
        """How values are spread. histograms: each with its labels, see `labels`."""
        return cls(name, "histogram", help_text, [one for label, each in histograms for one in each.samples(label)])


class Histogram:
    """Counts values by upper bounds. Observing one costs a fraction of a microsecond."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending; each bucket includes its own."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def samples(self, label: str) -> Iterable[tuple[str, float]]:
        """As Prometheus has them: buckets that include those before, their sum, their number."""
        head, below = f"{label[:-1]}," if label else "{", 0
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            yield f'_bucket{head}le="{bound}"}}', below
        yield f"_sum{label}", self._sum
        yield f"_count{label}", below


def labels(**values: str) -> str:
    """Labels of a sample, such as `{model_name="gpt2"}`; those without a value are left out."""
    named = [f'{name}="{_escaped(value)}"' for name, value in values.items() if value]
    return f"{{{','.join(named)}}}" if named else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def as_text(families: Iterable[MetricFamily]) -> str:
    """Metrics in the Prometheus text format, version 0.0.4."""
    lines = []
    for name, kind, meaning, samples in families:
        full = name if name.startswith(_STANDARD) else f"lmtool_{name}"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]
        lines += [f"{full}{label} {value}" for label, value in samples]
    return "\n".join(lines) + "\n"
