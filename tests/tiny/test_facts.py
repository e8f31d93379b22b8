"""What the model knows about the world."""

from __future__ import annotations

from random import Random

from lmtool.tiny.facts import CAPITALS, KINDS, OPPOSITES, capital, fact, several


def test_every_kind_makes_questions() -> None:
    """Every kind of fact gives a whole question and a whole answer."""
    for kind, share in KINDS:
        assert share > 0
        for seed in range(50):
            turn = kind(Random(seed))
            assert turn.prompt.strip()
            assert turn.reply[0].isupper()
            assert turn.reply.endswith(".")


def test_tables_have_one_answer_each() -> None:
    """No country has two capitals, and no word two opposites."""
    for table in (CAPITALS, OPPOSITES):
        assert len(dict(table)) == len(table)


def test_capital_answers_its_question() -> None:
    """The answer names the country or city that was asked for."""
    turn = capital(Random(3))
    assert any(country in turn.prompt and city in turn.reply for country, city in CAPITALS) or "of which" in turn.prompt


def test_several_names_as_many_as_asked() -> None:
    """`Name two ...` is answered with two."""
    turns = [several(Random(seed)) for seed in range(200)]
    assert all(turn.reply.count(",") == 0 and " and " in turn.reply for turn in turns if " two " in turn.prompt)


def test_a_fact_keeps_its_answer() -> None:
    """The question may be typed sloppily; the answer never is."""
    assert all(fact(Random(seed)).reply.endswith(".") for seed in range(200))
