"""Tokens that a filter lets through, found while more come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.filter import parse
from lmtool.tui.facts import TokenFacts
from lmtool.tui.lines import Spool
from lmtool.tui.measures import Measures
from lmtool.tui.sieve import Sieve
from tests.trace.conftest import generate, token, tokens


@given(
    st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=6),
    st.sampled_from(["tok:1", "!tok:2", "gap>0ms", "err"]),
)
def test_the_same_as_asking_each_token(frames: list[list[int]], expression: str) -> None:
    """While tokens come, exactly those are found that the filter lets through."""
    spool = Spool()
    spool.feed([generate(0.0)])
    made = Measures(spool.state, spool)
    sieve = Sieve(parse(expression), None, made)
    for i, ids in enumerate(frames):
        spool.feed([tokens(i / 10, *[token(one, 1 + one % 2) for one in ids])])
        wanted = [row for row in range(len(spool.state.tokens)) if parse(expression).token(TokenFacts(made, row))]
        assert sieve.rows(len(spool.state.tokens)).tolist() == wanted
        assert sieve.rows(2).tolist() == [row for row in wanted if row < 2]


def test_one_stream_only() -> None:
    """Tokens of other streams do not pass."""
    spool = Spool()
    spool.feed([generate(0.0), generate(0.0, 2), tokens(0.1, token(1), token(1, 2), token(1))])
    made = Measures(spool.state, spool)
    assert Sieve(parse("tok:1"), 0, made).rows(3).tolist() == [0, 2]
    assert Sieve(parse("tok:1"), 1, made).rows(3).tolist() == [1]


def test_a_stream_that_fails_later() -> None:
    """Where the filter asks how a stream ends, tokens seen before the end are found after it."""
    spool = Spool()
    spool.feed([generate(0.0), tokens(0.1, token(1))])
    sieve = Sieve(parse("err"), None, Measures(spool.state, spool))
    assert sieve.rows(1).tolist() == []
    spool.feed([tokens(0.2, {"stream_id": 1, "error": "no"})])
    assert sieve.rows(1).tolist() == [0]


@pytest.mark.parametrize(("expression", "step"), [("tok:1", 20_000), ("rank>1", 2_000)])
def test_bit_by_bit(expression: str, step: int) -> None:
    """Many tokens are not looked at in one go: drawing does not wait for them."""
    spool = Spool()
    spool.feed([generate(0.0)])
    spool.feed([tokens(i / 100, *[token(1)] * 100) for i in range(410)])
    sieve = Sieve(parse(expression), None, Measures(spool.state, spool))
    assert len(sieve.rows(41_000)) == 0
    rounds = 1
    while sieve.go_on():
        rounds += 1
    assert rounds == -(-41_000 // step)
    assert len(sieve.rows(41_000)) == (41_000 if expression == "tok:1" else 0)
