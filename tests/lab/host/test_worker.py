"""What `lab host` counts as a step; whole runs are in `tests/lab/host/test_command.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.host.run import Times
from tests.lab.host.worker import UNTIMED, FreeForward


def test_full_steps_alone_count() -> None:
    """The time between two steps of all streams, one behind the other; nothing before the engine runs."""
    done: list[bool] = []
    forward = FreeForward(4, 3, lambda: done.append(True))

    def step(rows: int) -> Any:
        return forward.logits(SimpleNamespace(logits=rows), None)  # type: ignore[arg-type]

    assert (step(4) == step(4)).all()
    forward.running = True
    for rows in (1, 4, 4, 3, 4, 4):
        assert step(rows).shape == (rows, 256)
    assert len(forward.seconds) == 2
    assert not (step(4) == step(4)).all()
    while not done:
        step(4)
    step(4)
    assert len(forward.seconds) == UNTIMED + 3
    assert done == [True]


def test_the_ratio_is_of_each_round() -> None:
    """Not of the medians: what slowed a round down slowed both versions down."""
    ratio = Times(now=[1.0, 10.0, 2.0], before=[2.0, 20.0, 5.0]).ratio
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.4, 0.5, 0.5))
    assert Times(now=[1.0]).ratio is None
