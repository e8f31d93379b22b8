"""Patterns for what texts are not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.schema.strings import literals, no_prefix_of, none_of

TEXTS = st.text(st.sampled_from("ab.^]-\\\n\x01é"), max_size=4)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_none_of(texts, text):
    """A text matches exactly if it is none of the given."""
    pattern = re.compile(none_of(texts).replace("\\x{1}", "\\x01").replace("\\x{a}", "\\n"))
    assert (pattern.fullmatch(text) is not None) == (text not in texts)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_no_prefix_of(texts, text):
    """A text matches exactly if it begins with none of the given."""
    pattern = re.compile(no_prefix_of(texts).replace("\\x{1}", "\\x01").replace("\\x{a}", "\\n"))
    assert (pattern.fullmatch(text) is not None) == (not text.startswith(tuple(texts)))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^x$", (["x"], True)),
        ("^x", (["x"], False)),
        ("^(a|b c)$", (["a", "b c"], True)),
        ("^(?:a|)$", (["a", ""], True)),
        (r"^a\.b\|c$", (["a.b|c"], True)),
        ("x", None),
        ("^a|b$", None),
        ("^a.c$", None),
        ("^[ab]$", None),
        ("^a+$", None),
        (r"^\d$", None),
        ("^(a$", None),
    ],
)
def test_literals(pattern, found):
    """Only a pattern that is nothing but texts, anchored at its start, is told as texts."""
    assert literals(pattern) == found
