"""Honest refusals."""

from __future__ import annotations

from random import Random

from lmtool.tiny import unknowns
from lmtool.tiny.evaluate import HONEST
from lmtool.tiny.facts import CAPITALS, MEANINGS
from lmtool.tiny.unknowns import NO_SENSE, nonsense, sign_of_life, unknown


def test_refusals_say_so() -> None:
    """Whatever is beyond the model is declined in plain words."""
    assert all(HONEST.search(unknown(Random(seed)).reply) for seed in range(500))


def test_junk_is_not_understood() -> None:
    """Keyboard junk gets the same answer always."""
    assert {nonsense(Random(seed)).reply for seed in range(50)} == {NO_SENSE}


def test_nothing_known_is_declined() -> None:
    """What the facts know is not among the unknown."""
    known = {country for country, _ in CAPITALS} | {noun for noun, _ in MEANINGS}
    assert not known & {*unknowns.COUNTRIES, *unknowns.ORDINARY, *unknowns.HARD_TOPICS}


def test_a_test_is_answered() -> None:
    """`test` is answered with a sign of life."""
    assert sign_of_life(Random(0)).reply.startswith("It works!")
