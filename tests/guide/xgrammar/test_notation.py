"""The forms of the notation."""

from __future__ import annotations

import pytest

from lmtool.guide.xgrammar import characters, notation
from lmtool.guide.xgrammar.notation import NOTHING, Rules


def test_text_and_characters_are_codes() -> None:
    """What could mean something in the notation is written as a code."""
    assert notation.text('a_1 "\\\n') == '"a_1 \\u0022\\u005c\\u000a"'
    assert notation.text("😀") == '"\\U0001f600"'
    assert notation.characters(characters.of((48, 57), (93, 93))) == "[0-9\\u005d]"
    assert notation.characters(()) is None


def test_what_has_no_text_spreads() -> None:
    """A sequence with an impossible part is impossible, a choice goes on without it."""
    assert notation.sequence(["[a]", None]) is None
    assert notation.sequence(["[a]", NOTHING, "[b]"]) == "[a] [b]"
    assert notation.sequence([]) == NOTHING
    assert notation.choice([None, "[a]", "[a]"]) == "[a]"
    assert notation.choice(["[a]", "[b]"]) == "([a] | [b])"
    assert notation.choice([None]) is None


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0, None, "([a])*"),
        (1, None, "([a])+"),
        (0, 1, "([a])?"),
        (1, 1, "[a]"),
        (3, 3, "([a]){3}"),
        (2, 5, "([a]){2,5}"),
        (2, None, "([a]){2,}"),
        (0, 0, NOTHING),
        (2, 1, None),
    ],
)
def test_repetitions(least: int, most: int | None, expected: str | None) -> None:
    """Each is written in its shortest form."""
    assert notation.repeated("[a]", least, most) == expected


def test_repetitions_of_nothing() -> None:
    """An impossible part may be there no time only; the empty text is empty however often."""
    assert notation.repeated(None, 0, 3) == NOTHING
    assert notation.repeated(None, 1, 3) is None
    assert notation.repeated(NOTHING, 2, 3) == NOTHING


def test_rules() -> None:
    """Rules come in order under names of their own; one that has no text never ends."""
    rules = Rules()
    assert rules.new(None) is None
    first, later = rules.new("[a]", "letter"), rules.reserve()
    rules.fill(later, None)
    assert rules.written(f"{first} {later}") == "root ::= letter_0 part_1\nletter_0 ::= [a]\npart_1 ::= part_1\n"
