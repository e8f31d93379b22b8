"""How often is drawn."""

from __future__ import annotations

import pytest

from lmtool.tui.pace import LONGEST, SHARE, SHORTEST, Pace


def test_slow_frames_make_frames_rare() -> None:
    """Drawing takes its share of the time and no more, down to eight frames a second."""
    pace = Pace()
    assert pace.period == SHORTEST
    pace.took(0.02)
    assert pace.period == pytest.approx(0.02 / SHARE)
    pace.took(0.2)
    assert pace.period == LONGEST


def test_quick_frames_bring_them_back() -> None:
    """After a while, little by little."""
    pace = Pace()
    pace.took(0.02)
    periods = []
    for _ in range(60):
        pace.took(0.001)
        periods.append(pace.period)
    assert periods == sorted(periods, reverse=True)
    assert SHORTEST < periods[0] < 0.02 / SHARE
    assert periods[-1] == SHORTEST
