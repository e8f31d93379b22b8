"""Phrases in lines."""

from __future__ import annotations

from lmtool.tui.documents.flow import flow
from lmtool.tui.runs import Run
from tests.tui.documents.watched import text


def test_phrases_stay_whole() -> None:
    """A phrase that does not fit begins a line; only what is wider than a line is cut, with a sign."""
    phrases = [Run("one two"), Run(""), Run("three"), Run("four and more than fits")]
    assert [text(line) for line in flow(phrases, 14)] == ["one two  three", "four and more…"]
