"""The words that several themes draw from."""

from __future__ import annotations

from random import Random

import pytest

from lmtool.tiny.words import ANIMALS, CITIES, NAMES, THINGS, some_city, some_name, some_thing, some_topic


@pytest.mark.parametrize(("draw", "known"), [(some_name, NAMES), (some_city, CITIES), (some_thing, THINGS)])
def test_half_is_made_up(draw, known) -> None:
    """Half of the names are made up, so that a model must copy and cannot guess."""
    rng = Random(1)
    share = sum(draw(rng) in known for _ in range(2000)) / 2000
    assert 0.45 < share < 0.55


def test_topics_are_known_and_new() -> None:
    """Stories are about known animals, and about words that nobody has seen."""
    drawn = {some_topic(Random(seed)) for seed in range(400)}
    assert drawn & set(ANIMALS)
    assert len(drawn) > 150
