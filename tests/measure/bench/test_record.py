"""Token times of requests, and their statistics."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.measure.bench.record import Goal, Record, Spread, percentile, spread, summary


def record(start: float, *stamps: float, error: str | None = None) -> Record:
    return Record(start, list(stamps), len(stamps), error)


def test_the_four_times() -> None:
    """First token, per token after it, gaps, last token."""
    one = record(10.0, 10.5, 10.6, 10.6, 11.1)
    assert (one.ttft, one.e2el) == pytest.approx((0.5, 1.1))
    assert one.tpot == pytest.approx(0.2)
    assert one.gaps == pytest.approx([0.1, 0.0, 0.5])
    assert record(0.0, 1.0).tpot is None


def test_an_empty_answer_is_whole() -> None:
    """A model that ends at once has answered: the end stands for the first token. An error stays one."""
    empty, failed = record(1.0), record(1.0, error="no")
    for one in (empty, failed):
        one.finish(1.5)
    assert (empty.complete, empty.tokens, empty.ttft, empty.tpot) == (True, 0, 0.5, None)
    assert not failed.complete


def test_summary() -> None:
    """Field names and units of the field; requests that failed count nowhere but in `failed`."""
    records = [record(0.0, 1.0, 2.0), record(0.0, 3.0, 5.0), record(0.0, error="no")]
    figures = summary(records, 5.0, Goal(ttft=2.0), cpu_seconds=2.0)
    assert (figures["completed"], figures["failed"], figures["output_tokens"]) == (2, 1, 4)
    assert figures["errors"] == {"no": 1}
    assert (figures["output_throughput"], figures["goodput"], figures["tokens_per_cpu_s"]) == (0.8, 0.4, 2.0)
    assert figures["ttft_ms"] == pytest.approx({"p50": 2000, "p90": 2800, "p99": 2980})
    assert figures["itl_ms"]["p50"] == figures["tpot_ms"]["p50"] == 1500
    assert figures["e2el_ms"]["p50"] == 3500


def test_unknown_figures_are_left_out() -> None:
    """No CPU time of a server elsewhere, no gaps of single tokens."""
    figures = summary([record(0.0, 1.0)], 1.0, Goal(), None)
    assert not {"tokens_per_cpu_s", "itl_ms", "tpot_ms"} & set(figures)


@pytest.mark.parametrize(
    ("goal", "met"),
    [(Goal(), True), (Goal(0.6), True), (Goal(0.4), False), (Goal(None, 0.21), True), (Goal(None, 0.19), False)],
)
def test_goals(goal: Goal, met: bool) -> None:
    """Time to the first token, and time per token after it, here 0.2 s: tokens that arrive together are no stall."""
    assert goal.is_met_by(record(0.0, 0.5, 0.8, 0.9)) is met
    assert Goal(1.0, 0.0).is_met_by(record(0.0, 0.5))


NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1)


@given(NUMBERS)
def test_the_50th_percentile_is_the_median(values: list[float]) -> None:
    """The standard library's median, whatever the order and the number."""
    assert percentile(values, 50) == pytest.approx(statistics.median(values), abs=1e-6)


@given(NUMBERS, st.integers(1, 99))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: int) -> None:
    """Nothing is outside, and one value is every percentile of itself."""
    assert min(values) - 1e-9 <= percentile(values, percent) <= max(values) + 1e-9
    assert percentile(values[:1], percent) == values[0]


def test_no_values() -> None:
    """Have neither percentile nor spread."""
    for call in (lambda: percentile([], 50), lambda: spread([])):
        with pytest.raises(ValueError, match="data points"):
            call()


def test_spread() -> None:
    """Median, least and greatest."""
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
