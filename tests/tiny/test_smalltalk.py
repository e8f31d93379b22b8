"""Pleasantries, and what the model says about itself."""

from __future__ import annotations

from random import Random

from lmtool.tiny.smalltalk import CHIT_CHAT, FAREWELL, GREETING, IDENTITY, amusement, farewell, greeting, talk


def test_every_talk_has_both_sides() -> None:
    """Each pleasantry has ways to ask and answers."""
    assert all(kind.asks and kind.answers for kind in CHIT_CHAT)


def test_it_says_who_it_is() -> None:
    """Asked for its name, it says: I am tiny, the small language model that comes with lmtool."""
    assert all(answer.startswith("I am tiny, the small language model") for answer in IDENTITY[0].answers)


def test_themes_draw_from_their_pages() -> None:
    """Greetings are answered with greetings, farewells with farewells."""
    rng = Random(5)
    assert greeting(rng).reply in {answer for kind in GREETING for answer in kind.answers}
    assert farewell(rng).reply in {answer for kind in FAREWELL for answer in kind.answers}
    assert talk(rng).reply
    assert amusement(rng).reply
