"""How long a waiting sequence will wait, by what was measured."""

from __future__ import annotations

import pytest

from lmtool.engine.queue_estimate import ADMISSIONS_KEPT, QueueEstimate


def test_nothing_is_known_before_one_that_waited_was_admitted() -> None:
    """Those that began at once say nothing of a queue, nor does the time in which none waited."""
    estimate = QueueEstimate()
    estimate.learn(5, 0, 1.0)
    estimate.learn(6, 2, 50.0)
    assert estimate.seconds(1) is None
    estimate.learn(6, 2, 53.0)
    assert estimate.seconds(1) is None
    estimate.learn(7, 1, 54.0)
    assert estimate.seconds(1) == 4.0
    assert estimate.seconds(3) == 12.0
    estimate.learn(8, 0, 56.0)
    estimate.learn(9, 0, 900.0)
    assert estimate.seconds(1) == 3.0


def test_what_is_long_past_weighs_less() -> None:
    """After a change of pace the estimate follows."""
    estimate = QueueEstimate()
    now = 0.0
    for admitted in range(1000):
        now += 10.0 if admitted < 500 else 1.0
        estimate.learn(admitted, 3, now)
    assert estimate.seconds(1) == pytest.approx(1.0, abs=0.01)
    assert ADMISSIONS_KEPT < 100
