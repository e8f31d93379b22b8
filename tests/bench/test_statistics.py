"""Percentiles and spreads."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.bench.statistics import Spread, percentile, spread

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1)


@given(numbers)
def test_the_50th_percentile_is_the_median(values: list[float]) -> None:
    """The standard library's median, whatever the order and the number."""
    assert percentile(values, 50) == pytest.approx(statistics.median(values), abs=1e-6)


@given(numbers, st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    """0 is the least, 100 the greatest, and nothing is outside."""
    assert min(values) - 1e-9 <= percentile(values, percent) <= max(values) + 1e-9
    assert (percentile(values, 0), percentile(values, 100)) == (min(values), max(values))


def test_of_nothing() -> None:
    """A percentile of nothing is a mistake; a spread of nothing is none."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert spread([]) is None


def test_spread() -> None:
    """Median, least and greatest."""
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
