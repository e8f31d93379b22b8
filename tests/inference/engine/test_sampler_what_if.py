"""What-if numbers beside the sampler itself; `python -m tests.lab.what_if` does that 100,000 times."""

from __future__ import annotations

import pytest

from tests.inference.engine.what_if_cases import check


@pytest.mark.parametrize("seed", range(8))
def test_the_engine_does_what_is_told(seed: int) -> None:
    """Over random steps and parameters every bound holds, and who is told to be drawn is drawn by the sampler."""
    counts = check(40, 10_000 + seed)
    assert counts["steps"] == 40
    assert counts["exact"] > 5
    assert counts["drawn"] > 5
