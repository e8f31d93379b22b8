"""Two streams side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmtool.tui.alignment import Side
from lmtool.tui.documents.comparison import ComparisonDocument
from lmtool.tui.glyphs import UNICODE
from lmtool.tui.runs import width
from lmtool.tui.view import View
from tests.tui.documents.watched import close, rows, view_of
from tests.tui.folding import asked, chunk, sse
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


@pytest.mark.parametrize("columns", [30, 45, 100])
def test_the_verdict_is_whole(view: View, columns: int) -> None:
    """However narrow the screen, no number and no remark of it is cut."""
    a, b = view.state.streams
    document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
    shown = rows(document, columns)
    assert all(width(line) <= columns for line in shown)
    verdict = " ".join(" ".join(shown[: document.heads - 1]).split())
    whole = " ".join(run.text for part in document._verdict for run in part)
    assert verdict == " ".join(whole.split())
    assert "A ' fox'" in verdict


def test_a_piece_of_text_is_cut() -> None:
    """Over HTTP a whole answer may be one piece: the verdict says how it begins."""
    answers = [replace(asked(0.0), connection=1), replace(asked(0.0), connection=2)]
    view = view_of([*answers, sse(0.1, chunk("x" * 500)), sse(0.1, chunk("y" * 500), connection=2)])
    a, b = view.state.streams
    document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
    assert (document.line(0, 100)[1].text, document.heads) == ("same 0 characters, 0 tokens cut alike, then", 3)
    close(view)


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
