"""Numbers for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.logprobs.numbers import clock, count, figure, milliseconds, percentile, size, two_decimals


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "-"), (0.0, "0.0"), (12.34, "12.3"), (99.96, "100"), (412.4, "412"),
     (1.25e7, "1e7"), (math.inf, "inf"), (-3.0, "-3.0")],
)  # fmt: skip
def test_figures(number: float | None, shown: str) -> None:
    """A decimal below a hundred, none above."""
    assert figure(number) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (0.0091, "9.1ms"), (0.34, "340ms"), (12.34, "12.3s")])
def test_times(seconds: float | None, shown: str) -> None:
    """Milliseconds up to ten seconds."""
    assert milliseconds(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "00:00.0"), (14.29, "00:14.2"), (59.99, "00:59.9"), (3661.5, "1:01:01.5"), (-1, "00:00.0")],
)
def test_the_clock(seconds: float, shown: str) -> None:
    """Minutes, seconds and tenths, never rounded up to what has not come yet."""
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(312, "312 B"), (1200, "1.2 kB"), (1_200_000, "1.2 MB"), (999_999, "1.0 MB"), (5 * 10**15, "5000 TB")],
)
def test_sizes(size_bytes: int, shown: str) -> None:
    """Units of a thousand."""
    assert size(size_bytes) == shown


def test_counts() -> None:
    """Thousands are told apart."""
    assert count(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("number", "shown"), [(None, "-"), (math.inf, "inf"), (3.061, "3.06"), (999.99, "999.99"), (1234.5, "1.23e+03")]
)
def test_two_decimals(number: float | None, shown: str) -> None:
    """As long as there are few digits before them."""
    assert two_decimals(number) == shown


@given(st.lists(st.floats(-100, 100), min_size=1), st.floats(0, 1))
def test_percentile_is_nearest_rank(values: list[float], share: float) -> None:
    """At least this share of the values is at most the percentile, and it is one of them."""
    found = percentile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values)
