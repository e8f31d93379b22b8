"""Times of tokens, and what they amount to."""

from __future__ import annotations

import pytest

from lmtool.bench.record import Goal, Record, summary


def record(began: float, *stamps: float, error: str | None = None) -> Record:
    return Record(began, list(stamps), len(stamps), error)


def test_the_four_times() -> None:
    """First token, per token after it, gaps, last token."""
    one = record(10.0, 10.5, 10.6, 10.6, 11.1)
    assert (one.ttft, one.e2el) == pytest.approx((0.5, 1.1))
    assert one.tpot == pytest.approx(0.2)
    assert one.gaps == pytest.approx([0.1, 0.0, 0.5])
    assert record(0.0, 1.0).tpot is None


def test_summary() -> None:
    """Field names and units of the field; requests that failed count nowhere but in `failed`."""
    records = [record(0.0, 1.0, 2.0), record(0.0, 3.0, 5.0), record(0.0, error="no")]
    told = summary(records, 5.0, Goal(ttft=2.0), cpu_seconds=2.0)
    assert (told["completed"], told["failed"], told["output_tokens"]) == (2, 1, 4)
    assert (told["output_throughput"], told["goodput"], told["tokens_per_cpu_s"]) == (0.8, 0.4, 2.0)
    assert told["ttft_ms"] == pytest.approx({"p50": 2000, "p90": 2800, "p99": 2980})
    assert told["itl_ms"]["p50"] == told["tpot_ms"]["p50"] == 1500
    assert told["e2el_ms"]["p50"] == 3500


def test_what_is_not_known_is_left_out() -> None:
    """No CPU time of a server elsewhere, no gaps of single tokens."""
    told = summary([record(0.0, 1.0)], 1.0, Goal(), None)
    assert not {"tokens_per_cpu_s", "itl_ms", "tpot_ms"} & set(told)


@pytest.mark.parametrize(
    ("goal", "kept"),
    [(Goal(), True), (Goal(0.6), True), (Goal(0.4), False), (Goal(None, 0.5), True), (Goal(None, 0.2), False)],
)
def test_goals(goal: Goal, kept: bool) -> None:
    """Time to the first token, and the 99th percentile of the gaps."""
    assert goal.kept_by(record(0.0, 0.5, 0.8, 0.9)) is kept
    assert Goal(1.0, 0.0).kept_by(record(0.0, 0.5))
