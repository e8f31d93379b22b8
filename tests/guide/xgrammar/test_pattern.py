"""Regular expressions as trees."""

from __future__ import annotations

import pytest

from lmtool.guide.xgrammar import characters
from lmtool.guide.xgrammar.pattern import Anchor, Branch, OneOf, PatternError, Repeat, Sequence, parse


def test_tree() -> None:
    """Groups, counts, alternatives and anchors become parts; laziness and names of groups say nothing."""
    a, b = (OneOf(characters.of_text(letter), characters.of_text(letter)) for letter in "ab")
    assert parse("^a{2,}?(?P<x>b|)$") == Sequence(
        (Anchor(start=True), Repeat(a, 2, None), Branch((b, Sequence(()))), Anchor(start=False))
    )
    assert parse("(?:a)?") == Repeat(a, 0, 1)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(r"\x41", "A"), (r"\u0041", "A"), (r"\x{41}", "A"), (r"\u{1F600}", "😀"), (r"\n", "\n"), (r"\.", "."), ("]", "]")],
)
def test_single_characters(pattern: str, expected: str) -> None:
    """Codes and escapes of every dialect are the characters that they stand for."""
    assert parse(pattern) == OneOf(characters.of_text(expected), characters.of_text(expected))


def test_classes() -> None:
    """Ranges, escapes and negation; what dialects read differently is taken in its narrow sense."""
    assert parse(r"[a-c\-x-]") == parse(r"[\-\x61-cx-]")
    every = parse(r"[\s\S]")
    assert isinstance(every, OneOf)
    assert every.inner == characters.ALL
    word = parse(r"[^\w]")
    assert isinstance(word, OneOf)
    assert word.inner == characters.NO_WORD


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(?=a)a", "look-around"),
        ("(?i)a", "flags"),
        (r"(a)\1", r"\1"),
        (r"\p{L}", r"\p"),
        (r"a\b", r"\b"),
        ("a{2}{3}", "two repetitions"),
        ("*a", "nothing stands"),
        ("a{,3}", "without a count"),
        ("a{3,2}", "no count"),
        ("(a", "unclosed group"),
        ("a)", "without its ("),
        ("[a", "unclosed class"),
        ("[]", "an empty class"),
        ("[[:alpha:]]", "dialects"),
        ("[a&&b]", "dialects"),
        ("[z-a]", "a range"),
        (r"[\d-z]", "a range"),
        (r"[\A]", "an anchor in a class"),
        ("^*", "repeated anchor"),
        (r"\ud800", "no character"),
        ("(" * 200, "nested"),
        ("a\\", "\\"),
    ],
)
def test_refused(pattern: str, told: str) -> None:
    """What is not supported is named."""
    with pytest.raises(PatternError) as refused:
        parse(pattern)
    assert told in str(refused.value)
