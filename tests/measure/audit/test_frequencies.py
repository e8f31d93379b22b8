"""The test of frequencies: its rate of false alarms is bounded, and what is wrong is found early."""

from __future__ import annotations

import math
import random

import pytest

from lmtool.measure.audit.evidence import Token
from lmtool.measure.audit.frequencies import RATE, Draws, Event, claimed_event, tempered_event

TRUTH = (0.45, 0.25, 0.12, 0.08)
"""Probabilities of four alternatives; a tenth is the rest."""


def drawn(truth: tuple[float, ...], claims: tuple[float, ...], count: int, seed: int) -> Draws:
    """Bets on draws from a truth that is claimed to be something else."""
    draws, draw = Draws(), random.Random(seed)
    outcomes = [*range(len(truth)), None]
    for one in draw.choices(outcomes, [*truth, 1 - sum(truth)], k=count):
        draws.add(Event(claims, max(0.0, 1 - sum(claims)), one))
    return draws


def test_true_claims_are_not_refuted() -> None:
    """Of 150 true claims none is; the capital grows a hundredfold hardly ever: in one of a hundred at most (Ville)."""
    highest = [drawn(TRUTH, TRUTH, 100, seed).highest for seed in range(150)]
    assert max(highest) < -math.log(RATE)
    assert sum(one > math.log(100) for one in highest) <= 0.02 * 150


def test_the_mean_capital_does_not_grow() -> None:
    """Each bet is fair or worse: over all outcomes its expected gain is at most 1."""
    event = Event(TRUTH, 1 - sum(TRUTH), None)
    gains = [0.0] * 40
    for index, share in [*enumerate(TRUTH), (None, 1 - sum(TRUTH))]:
        draws = Draws()
        draws.add(Event(TRUTH, event.rest, index))
        for number, one in enumerate(draws.capital):
            gains[number] += share * math.exp(one)
    assert 0.9 < max(gains) <= 1


@pytest.mark.parametrize("power", [1 / math.log(2), 0.5, 1.6])
def test_false_claims_are_refuted(power: float) -> None:
    """Logarithms of another base, another temperature: some hundred tokens show it."""
    weights = [one**power for one in (*TRUTH, 0.1)]
    claims = tuple(one / sum(weights) for one in weights[:-1])
    assert drawn(TRUTH, claims, 800, 1).refuted
    assert drawn(TRUTH, tuple(one ** (1 / math.log(2)) for one in TRUTH), 400, 1).refuted


def test_what_came_is_no_category_of_its_own() -> None:
    """A token that is listed because it came belongs to the rest, as it would if another had come."""
    best = (("a", -0.5), ("b", -1.5), ("c", -3.0))
    for alternatives in (best, (*best, ("z", -6.0)), (*best[:2], ("z", -6.0))):
        event = claimed_event(Token("z", -6.0, alternatives), 3)
        assert event is not None
        assert event.index is None
        assert event.claims == (math.exp(-0.5), math.exp(-1.5))
    came = claimed_event(Token("b", -1.5, best), 3)
    assert came is not None
    assert came.index == 1


def test_names_that_several_tokens_share() -> None:
    """They are no categories: which of them came is not known."""
    event = claimed_event(Token("\ufffd", -1.0, (("a", -0.7), ("\ufffd", -1.0), ("", -2.0), ("b", -4.0))), 4)
    assert event == Event((math.exp(-0.7),), 1 - math.exp(-0.7), None)


def test_another_temperature() -> None:
    """Raw logprobs say how often each alternative comes at it, among those that are shown."""
    token = Token("a", math.log(0.6), (("a", math.log(0.6)), ("b", math.log(0.3)), ("c", math.log(0.05))))
    event = tempered_event(token, 3, 0.5)
    assert event is not None
    assert event.claims == pytest.approx((0.8, 0.2))
    assert tempered_event(Token("z", -5.0, token.alternatives), 3, 0.5) is None
