"""Two streams side by side."""

from __future__ import annotations

from lmtool.tui.alignment import Side
from lmtool.tui.documents.comparison import ComparisonDocument
from lmtool.tui.glyphs import UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import close, rows, view_of
from tests.tui.scripted import request, tokens


def test_where_they_part(view: View) -> None:
    """How many tokens are the same, what each side says there with its probability, and both texts."""
    a, b = view.state.streams
    shown = rows(ComparisonDocument(Side(view, a), Side(view, b), UNICODE), 100)
    assert "1 token" in shown[0]
    joined = "\n".join(shown)
    assert "A 1/1" in joined
    assert "B 1/2" in joined
    assert "▕ fox▏" in joined
    assert "▕.▏" in joined


def test_the_parting_is_what_is_seen_first() -> None:
    """After hundreds of equal tokens the anchor is the line where they part, below what stays in sight."""
    events = [
        request(0.1, 1),
        request(0.1, 2),
        *(tokens(0.2 + i / 1000, (1, 7, -0.1), (2, 7, -0.1)) for i in range(300)),
    ]
    view = view_of([*events, tokens(0.9, (1, 8, -0.1), (2, 9, -0.2))])
    a, b = view.state.streams
    document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
    shown = rows(document, 60)
    anchor = document.anchor(60)
    assert anchor is not None
    assert document.heads < anchor < len(shown)
    assert "▕" in shown[anchor]
    close(view)
