"""The card of a contest."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from lmtool.bench.engine_card import engine_card, ratio
from lmtool.bench.engine_report import EngineReport
from lmtool.bench.statistics import Spread
from tests.bench.test_engine_report import report


def drawn(columns: int, shown: EngineReport) -> str:
    stream = StringIO()
    Console(file=stream, width=columns, color_system=None).print(engine_card(shown, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [44, 60, 80, 120])
def test_it_fits(columns: int) -> None:
    """No line is longer than the terminal is wide."""
    assert max(map(len, drawn(columns, report()).splitlines())) <= columns


def test_it_says_who_is_faster_and_how_sure_that_is() -> None:
    """Rates, share of the limit, ratio with its spread, ids compared."""
    text = drawn(120, report())
    for part in ("50.0", "10%", "2.00 (2.00-2.00)", "40/64", "batch 2", "2 rounds"):
        assert part in text


def test_it_says_what_does_not_count() -> None:
    """Other ids, a peer that failed, rounds that were disturbed."""
    other = report(peer_wrong=1)
    other.failures["vllm:float32"] = "no room"
    text = drawn(120, other)
    assert "differ" in text
    assert "vllm:float32: no room" in text
    assert "its numbers do not count" in text
    assert "every round was disturbed" in drawn(120, report(steady=False))


def test_ratio() -> None:
    """Median and extremes, or nothing."""
    assert ratio(Spread(1.9, 1.85, 2.0)) == "1.90 (1.85-2.00)"
    assert ratio(None) == ""
