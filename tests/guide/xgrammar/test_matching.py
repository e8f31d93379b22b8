"""Regular expressions in the notation."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.xgrammar import characters
from lmtool.guide.xgrammar.matching import found_in_json, json_character, whole
from lmtool.guide.xgrammar.notation import Rules
from lmtool.guide.xgrammar.pattern import PatternError
from tests.guide.xgrammar.reading import matches

ATOMS = st.sampled_from(["a", "b", "[ab]", "[^a]", "\\d", "\\D", ".", '"', "\\\\", "é"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(lambda both: f"(?:{both[0]}){both[1]}"),
    ),
    max_leaves=5,
)
TEXTS = st.text('ab1"\\é\n,', max_size=6)


@given(PATTERNS, TEXTS)
def test_whole_matches_are_pythons(pattern: str, text: str) -> None:
    """No text is a match that is none to Python; those of ASCII without line breaks are the same."""
    ours = matches(Rules().written(whole(pattern) or ""), text)
    theirs = re.fullmatch(pattern, text) is not None
    assert theirs or not ours
    if text.isascii() and text.isprintable():
        assert ours == theirs


@given(PATTERNS, st.booleans(), st.booleans(), TEXTS)
def test_found_in_json_strings(pattern: str, start: bool, end: bool, text: str) -> None:
    """Between quotes, escaped as JSON needs it, stand texts in which Python finds the pattern."""
    anchored = f"{'^' if start else ''}(?:{pattern}){'$' if end else ''}"
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    ours = matches(Rules().written(found_in_json(anchored) or ""), inside)
    theirs = re.search(f"{'^' if start else ''}(?:{pattern}){chr(92) + 'Z' if end else ''}", text) is not None
    assert theirs or not ours
    if text.isascii() and text.isprintable():
        assert ours == theirs


@pytest.mark.parametrize("pattern", ["^a|b$", "^(a|b)$", "(?:^a$|^b$)", "^^a$$", r"\Aa\Z"])
def test_anchors_at_the_ends(pattern: str) -> None:
    """Anchors at the ends say nothing where the whole text must match."""
    grammar = Rules().written(whole(pattern) or "")
    assert matches(grammar, "a")
    assert not matches(grammar, "ab")


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(^a)+", "a|b(c$|d)e"])
def test_anchors_in_the_middle(pattern: str) -> None:
    """Anchors in the middle are refused: the library would leave them out."""
    with pytest.raises(PatternError, match="in the middle"):
        whole(pattern)


def test_characters_within_json() -> None:
    """A character that must be escaped is; a control without a short form is a code."""
    assert json_character(characters.of_text('a"\n')) == '([a] | "\\u005c\\u0022" | "\\u005cn")'
    assert json_character(characters.of_text("\x01")) == '"\\u005cu0001"'
    assert json_character(()) is None


def test_nothing() -> None:
    """A pattern that no text matches has no expression."""
    assert whole(r"[^\s\S]a") is None
