"""Lists and texts."""

from __future__ import annotations

from lmtool.tui.documents.list import ListDocument, broken, text_document
from lmtool.tui.runs import Run
from tests.tui.documents.watched import rows, text


def test_choosing() -> None:
    """The cursor walks over lines that have a target, and stops at the ends."""
    document = ListDocument([[Run("title")], [Run("a", "", 10)], [Run("b", "", 20)]], cursor=">")
    assert rows(document, 20) == ["  title", "> a", "  b"]
    assert document.chosen == 10
    document.move(5)
    assert document.chosen == 20
    assert document.anchor(20) == 2
    document.click(10)
    assert document.chosen == 10


def test_begins_at_the_marked_line() -> None:
    """A line in the style of a cursor is where the cursor begins."""
    assert ListDocument([[Run("a", "", 1)], [Run("b", "cursor", 2)]], cursor=">").chosen == 2


def test_long_lines_are_broken() -> None:
    """Nothing is lost, and nothing is wider than asked, wide characters included."""
    assert [text(part) for part in broken([Run("abcdef"), Run("gh")], 4)] == ["abcd", "efgh"]
    assert [text(part) for part in broken([Run("some words here")], 11)] == ["some words ", "here"]
    assert [text(part) for part in broken([Run("a漢字")], 3)] == ["a漢", "字"]
    assert rows(text_document("a\x1b\nb"), 10) == ["a⟨1b⟩", "b"]
