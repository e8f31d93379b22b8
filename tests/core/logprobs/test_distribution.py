"""What a few alternatives tell of a distribution."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.logprobs.distribution import (
    Distribution,
    Rank,
    bits,
    is_normalised,
    least_divergence,
    perplexity,
    probabilities,
    sum_by_name,
)
from lmtool.core.logprobs.numbers import format_probability

if TYPE_CHECKING:
    from collections.abc import Sequence

HALF, QUARTER, EIGHTH = math.log(0.5), math.log(0.25), math.log(0.125)
LISTED = [(11, HALF), (12, QUARTER), (13, EIGHTH)]


def of(chosen: int, p: float, listed: Sequence[tuple[int, float]] = LISTED, k: int | None = None) -> Distribution[int]:
    """A step of which a token of probability p was chosen."""
    return Distribution.of(chosen, math.log(p), listed, k)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[float], int, int, bool]:
    """Probabilities by id, best first; how many are asked for; which is chosen; whether the server has a limit of 3."""
    weights = draw(st.lists(st.floats(0.001, 1), min_size=6, max_size=40))
    total = math.fsum(weights)
    ps = sorted((weight / total for weight in weights), reverse=True)
    return ps, draw(st.integers(0, 8)), draw(st.integers(0, len(ps) - 1)), draw(st.booleans())


def sent(step: tuple[list[float], int, int, bool]) -> Distribution[int]:
    """What a server sends of a step: the best ones, and the chosen one where it is not among them."""
    ps, asked, chosen, limited = step
    told = [(i, math.log(p)) for i, p in enumerate(ps[: min(asked, 3) if limited and asked != 4 else asked])]
    if chosen not in dict(told):
        told.append((chosen, math.log(ps[chosen])))
    return Distribution.of(chosen, math.log(ps[chosen]), told, asked)


@given(steps())
def test_a_rank_is_never_wrong(step: tuple[list[float], int, int, bool]) -> None:
    """An exact rank is one more than the number of likelier tokens; any other one is at least what it says."""
    ps, asked, chosen, _ = step
    true = 1 + sum(p > ps[chosen] for p in ps)
    rank = sent(step).rank
    if rank is None:
        assert asked == 0
    elif rank.exact:
        assert rank.place == true
    else:
        assert rank.place <= true


@given(steps())
def test_entropy_and_mass_are_true(step: tuple[list[float], int, int, bool]) -> None:
    """The entropy lies within its bounds, and the mass is that of as many likeliest tokens, whatever was left out."""
    ps, _, _, _ = step
    made = sent(step)
    bounds, mass = made.entropy(len(ps)), made.mass
    assert bounds is not None
    assert bounds[0] - 1e-9 <= -math.fsum(p * math.log2(p) for p in ps) <= bounds[1] + 1e-9
    assert mass == pytest.approx(math.fsum(ps[: len(made.top)]))


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (of(11, 0.5), "1"),
        (of(12, 0.25), "2"),
        (of(13, 0.125), ">2"),  # the third of three, or the chosen one behind the best two
        (of(13, 0.125, k=3), "3"),
        (of(13, 0.125, k=2), ">2"),
        (of(99, 0.01, [*LISTED, (99, math.log(0.01))], k=3), ">3"),
        (of(99, 0.12, [*LISTED, (99, math.log(0.12))], k=3), "4"),  # too little is left for a likelier one
        (of(99, 0.2), "3"),  # not listed itself
        (of(1, 0.7, [(1, math.log(0.7))], k=0), "1"),
        (of(1, 0.2, [(1, math.log(0.2))], k=1), "1"),
        (of(1, 0.2, [(1, math.log(0.2))], k=0), "None"),
        (of(2, 0.3, [(1, math.log(0.3)), (2, math.log(0.3))], k=1), "1"),  # equals share the better place
    ],
)
def test_ranks(made: Distribution[int], shown: str) -> None:
    """A rank is a number where it is known, `>k` where likelier tokens may have been left out."""
    assert str(made.rank) == shown


@pytest.mark.parametrize(
    ("rank", "compare", "limit", "holds"),
    [
        (Rank(3), operator.gt, 2, True), (Rank(3), operator.eq, 4, False),
        (Rank(6, exact=False), operator.gt, 5, True), (Rank(6, exact=False), operator.gt, 6, None),
        (Rank(6, exact=False), operator.ge, 6, True), (Rank(6, exact=False), operator.lt, 6, False),
        (Rank(6, exact=False), operator.lt, 9, None), (Rank(6, exact=False), operator.le, 5, False),
        (Rank(6, exact=False), operator.eq, 5, False), (Rank(6, exact=False), operator.eq, 9, None),
    ],
)  # fmt: skip
def test_comparing_ranks(rank: Rank, compare: object, limit: float, holds: bool | None) -> None:
    """What a bound does not decide is not known."""
    assert rank.holds(compare, limit) is holds  # type: ignore[arg-type] # one of the operators


def test_alternatives_keep_their_order() -> None:
    """Those that were sent stay as they were; a chosen token that was not sent comes at its place."""
    tie = [(1, HALF), (2, HALF)]
    assert of(2, 0.5, tie).alternatives == tuple(tie)
    assert of(99, 0.2).alternatives == (*LISTED[:2], (99, math.log(0.2)), LISTED[2])
    beyond = of(99, 0.01, k=3)
    assert (beyond.top, beyond.beyond, beyond.alternatives[-1]) == (
        tuple(LISTED),
        (99, math.log(0.01)),
        (99, math.log(0.01)),
    )


def test_a_token_without_a_logprob() -> None:
    """It has no rank; its alternatives are what they are."""
    made = Distribution.of(7, None, LISTED)
    assert (made.rank, made.top, made.mass) == (None, tuple(LISTED), pytest.approx(0.875))
    assert Distribution.of(7, None, ()).entropy(10) is None


def test_what_a_server_did_not_normalise() -> None:
    """Sums above 1 are brought down to 1 for drawing; nothing is said of what was left out."""
    assert probabilities([math.log(2.0), math.log(2.0)]) == pytest.approx([0.5, 0.5])
    assert probabilities([HALF, QUARTER]) == pytest.approx([0.5, 0.25])
    assert probabilities([1000.0, -1000.0]) == [1.0, 0.0]
    made = Distribution.of(1, 1000.0, [(1, 1000.0), (2, math.log(0.9))])
    assert (made.is_normalised, made.mass, made.entropy(10), str(made.rank)) == (False, None, None, "1")
    assert str(Distribution.of(3, math.log(0.6), [(1, -0.1), (2, -0.2), (3, math.log(0.6))]).rank) == ">2"
    assert not is_normalised([0.1])
    nothing_chosen = [
        Distribution.of(9, None, [(1, p)], unnormalised=known) for p, known in ((-1.0, True), (0.5, False))
    ]
    assert [one.is_normalised for one in nothing_chosen] == [False, False]


@given(st.lists(st.floats(-3.5e38, 800), max_size=8), st.none() | st.integers(1, 100_000), st.integers(0, 9))
def test_whatever_a_server_sends(logprobs: list[float], vocab_size: int | None, chosen: int) -> None:
    """Bounds are finite and in order, and nothing raises."""
    listed = sorted(enumerate(logprobs), key=lambda one: -one[1])
    bounds = Distribution.of(chosen, -1.0, listed).entropy(vocab_size)
    if bounds is not None:
        assert 0 <= bounds[0] <= bounds[1] + 1e-9
        assert math.isfinite(bounds[1])


def test_everything_listed() -> None:
    """Where the alternatives are all there is, the bounds are the entropy; and it is 0 where nothing else can come."""
    assert of(1, 0.5, [(1, HALF), (2, HALF)]).entropy(2) == pytest.approx((1, 1))
    assert of(1, 0.5, [(1, HALF), (2, HALF)]).entropy(100) == pytest.approx((1, 1), abs=1e-4)
    assert of(1, 1.0, [(1, 0.0)]).entropy(100) == pytest.approx((0, 0), abs=1e-4)


def test_an_unknown_vocabulary() -> None:
    """Without the size of the vocabulary the upper bound is that of a very large one."""
    unknown, known = of(11, 0.5).entropy(None), of(11, 0.5).entropy(50_000)
    assert unknown is not None
    assert known is not None
    assert unknown[0] == known[0]
    assert unknown[1] > known[1]


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)), min_size=3, max_size=30), st.data())
def test_the_divergence_is_at_least_what_is_said(weights: list[tuple[float, float]], data: st.DataObject) -> None:
    """Whichever tokens each side lists, the true KL divergence is no smaller."""
    sums = [math.fsum(column) for column in zip(*weights, strict=True)]
    p, q = ([one[side] / sums[side] for one in weights] for side in (0, 1))
    true = math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    ids = st.sets(st.integers(0, len(p) - 1))
    ours, theirs = ({i: math.log(ps[i]) for i in data.draw(ids)} for ps in (p, q))
    least = least_divergence(ours, theirs)
    assert (least is None) == (not ours.keys() & theirs.keys())
    assert least is None or 0 <= least <= true + 1e-6


def test_divergence_of_what_is_no_distribution() -> None:
    """Logprobs that sum to more than 1 are compared with nothing."""
    assert least_divergence({1: -0.1, 2: -0.1}, {1: -0.5}) is None
    assert least_divergence({1: HALF}, {1: HALF}) == 0


def test_names_that_several_ids_have() -> None:
    """Their probabilities add up."""
    assert sum_by_name([("a", QUARTER), ("b", HALF), ("a", QUARTER)]) == pytest.approx({"a": HALF, "b": HALF})


def test_bits() -> None:
    """One bit is a half; a logprob above 0, which some servers send, is no surprise."""
    assert bits(HALF) == pytest.approx(1)
    assert bits(0.3) == 0


@pytest.mark.parametrize(
    ("p", "shown"),
    [(1.0, "1.00"), (0.9996, "1.00"), (0.9994, ".999"), (0.326, ".326"), (0.001, ".001"), (0.00051, "5e-4"),
     (2e-5, "2e-5"), (1e-12, "1e-12"), (0.0, "0")],
)  # fmt: skip
def test_probabilities(p: float, shown: str) -> None:
    """Three digits without the zero in front; small ones as a power of ten."""
    assert format_probability(p) == shown


@given(st.floats(0, 1))
def test_probabilities_are_short_and_true(p: float) -> None:
    """Six characters hold every one; what is shown is the value, within half of its last digit."""
    shown = format_probability(p)
    assert len(shown) <= 6
    assert float(shown) == pytest.approx(
        p, abs=0.000501 if p >= 0.0009995 else 0.051 * 10 ** math.ceil(math.log10(p or 1))
    )


@pytest.mark.parametrize(
    ("logprob", "tokens", "expected"), [(4 * QUARTER, 4, 4.0), (None, 4, None), (-1.0, 0, None), (-1e6, 1, math.inf)]
)
def test_perplexity(logprob: float | None, tokens: int, expected: float | None) -> None:
    """E to the mean surprisal in nats; nothing for no tokens, infinite where a float cannot hold it."""
    assert perplexity(logprob, tokens) == (None if expected is None else pytest.approx(expected))
