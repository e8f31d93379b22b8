"""Sets of characters."""

from __future__ import annotations

import re
import sys

from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.xgrammar import characters

RANGES = st.lists(
    st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 300)).map(lambda at: (at[0], min(sum(at), 0x10FFFF)))
)
SAMPLE = [
    *range(0x700),
    *range(0x1600, 0x1800),
    *range(0x2000, 0x2100),
    0x3000,
    0xD7FF,
    0xE000,
    0xFEFF,
    0x1D7CE,
    0x10FFFF,
]


def holds(held: characters.Characters, code: int) -> bool:
    return any(first <= code <= last for first, last in held)


@given(RANGES, RANGES)
def test_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Union, complement and difference are those of sets, and surrogates are in none of them."""
    left, right = characters.of(*one), characters.of(*other)
    asked = {code for first, last in [*one, *other] for code in (first - 1, first, last, last + 1)} | {0xD7FF, 0xE000}
    for code in (code for code in asked if 0 <= code <= 0x10FFFF):
        spoken = not 0xD800 <= code <= 0xDFFF
        inside = [spoken and any(first <= code <= last for first, last in given) for given in (one, other)]
        assert holds(left, code) == inside[0]
        assert holds(characters.union(left, right), code) == any(inside)
        assert holds(characters.complement(left), code) == (spoken and not inside[0])
        assert holds(characters.without(left, right), code) == (inside[0] and not inside[1])


def test_categories_are_within_pythons() -> None:
    """What is taken for a digit, a word's character or a blank, or for none, is so to Python's `re` as well."""
    for letter, own, other in (
        ("d", characters.DIGITS, characters.NO_DIGIT),
        ("w", characters.WORD, characters.NO_WORD),
        ("s", characters.SPACES, characters.NO_SPACE),
    ):
        for code in SAMPLE:
            found = re.fullmatch(f"\\{letter}", chr(code)) is not None
            assert found or not holds(own, code)
            assert not (found and holds(other, code)), (letter, hex(code))


def test_every_character_is_in_all() -> None:
    """A set and what is not in it have every character but surrogates between them."""
    assert characters.union(characters.WORD, characters.complement(characters.WORD)) == characters.ALL
    assert ((0, 0xD7FF), (0xE000, sys.maxunicode)) == characters.ALL
