"""Limits on time."""

from __future__ import annotations

import pytest

from lmtool.trace.exchanges import exchanges
from lmtool.trace.timing import figures, judge
from tests.trace.conftest import generate, token, tokens

CAME = exchanges([generate(1), tokens(1.1, token(7)), tokens(1.2, token(8)), tokens(1.5, token(9))])


def test_figures() -> None:
    """Time to the first token, the longest usual gap, tokens a second since the request."""
    assert figures(CAME[0]) == pytest.approx({"ttft_ms": 100, "gap_p99_ms": 300, "tokens_per_second": 6})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, []),
        ({"ttft_ms": 200, "gap_p99_ms": 400, "tokens_per_second": 5}, []),
        ({"ttft_ms": 50}, ["fail (time) stream 1/1: expected ttft_ms 50, got 100.0"]),
        ({"tokens_per_second": 7}, ["fail (time) stream 1/1: expected tokens_per_second 7, got 6.0"]),
        ({"level": "time"}, []),
    ],
)
def test_limits(limits: dict[str, object], found: list[str]) -> None:
    """Only what a recording limits is judged."""
    assert [str(one) for one in judge(CAME, limits)] == found


def test_nothing_to_measure() -> None:
    """A stream without a token has no figures."""
    assert figures(exchanges([generate(0)])[0]) == {}  # type: ignore[arg-type]
