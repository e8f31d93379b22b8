"""Columns of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.cli.talking.cells import chunks, fit, pad, shorten, width


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("🙂", 2), ("a\u200bb", 2), ("", 0), ("é", 1)]
)
def test_width(text: str, columns: int) -> None:
    """Wide characters take two columns, combining ones none."""
    assert width(text) == columns


@given(st.text(), st.integers(0, 20))
def test_fit_is_the_longest_beginning(text: str, columns: int) -> None:
    """`fit` returns the longest beginning that takes at most so many columns."""
    head = fit(text, columns)
    assert text.startswith(head)
    assert width(head) <= columns
    if head != text:
        assert width(text[: len(head) + 1]) > columns


@given(st.text(), st.integers(1, 20))
def test_shorten_and_pad(text: str, columns: int) -> None:
    """A shortened text fits, and a padded one takes exactly the columns."""
    short = shorten(text, columns)
    assert width(short) <= columns
    assert width(pad(short, columns)) == columns
    assert width(pad(short, columns, right=True)) == columns
    if short != text:
        assert short.endswith("…")


@given(st.text())
def test_chunks_are_the_text(text: str) -> None:
    """Nothing is lost between line feeds, spaces and words."""
    assert "".join(chunks(text)) == text
    for chunk in chunks(text):
        assert chunk == "\n" or "\n" not in chunk
