"""How often is drawn."""

from __future__ import annotations

from lmtool.tui.pace import PERIODS, Pace


def test_slow_frames_make_frames_rare() -> None:
    """Three slow ones in a row: from 30 to 15 to 8 a second, no further."""
    pace = Pace()
    pace.took(0.03)
    pace.took(0.03)
    assert pace.period == PERIODS[0]
    pace.took(0.03)
    assert pace.period == PERIODS[1]
    for _ in range(20):
        pace.took(0.2)
    assert pace.period == PERIODS[2]


def test_quick_frames_bring_them_back() -> None:
    """After a while, a step at a time; one slow frame between begins the while anew."""
    pace = Pace()
    for _ in range(6):
        pace.took(0.1)
    for _ in range(59):
        pace.took(0.001)
    pace.took(0.1)
    assert pace.period == PERIODS[2]
    for _ in range(60):
        pace.took(0.001)
    assert pace.period == PERIODS[1]
