"""How people type."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lmtool.tiny.phrasing import article, capitalised, fill, invent, listed, sloppy, spin, unpunctuated

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_spin_takes_one_alternative(seed: int) -> None:
    """Each `[this|that]` becomes one of its alternatives, an empty one included."""
    assert spin(Random(seed), "[a|b] c[| d]") in {"a c", "b c", "a c d", "b c d"}


def test_fill_puts_in_slots_and_mends_articles() -> None:
    """Slots are filled, and `a` becomes `an` before a vowel that is spoken as one."""
    assert fill(Random(0), ("A {x} and a {y}",), x="owl", y="unicorn") == "An owl and a unicorn"


@given(SEEDS)
def test_invented_words_are_words(seed: int) -> None:
    """A made-up word is lower-case letters, three at least."""
    word = invent(Random(seed))
    assert word.isalpha()
    assert word.islower()
    assert len(word) >= 3


@given(SEEDS, st.text("ab 7.?!", min_size=1))
def test_sloppy_never_fails_nor_changes_numbers(seed: int, text: str) -> None:
    """Hurried typing leaves every digit where it was."""
    assert [c for c in sloppy(Random(seed), text) if c.isdigit()] == [c for c in text if c.isdigit()]


@given(SEEDS)
def test_unpunctuated_changes_only_the_end(seed: int) -> None:
    """Only the last full stop or question mark comes and goes."""
    assert unpunctuated(Random(seed), "My name is Bo.").startswith("My name is Bo")


def test_english_forms() -> None:
    """Articles, capitals and lists are as English writes them."""
    assert article("elf") == "an elf"
    assert article("fox") == "a fox"
    assert capitalised("polar Bear") == "Polar Bear"
    assert listed(["one"]) == "one"
    assert listed(["one", "two", "three"]) == "one, two and three"
