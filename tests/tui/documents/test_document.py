"""What every pane relies on, for every document at every width."""

from __future__ import annotations

import pytest

from lmtool.tui.documents.detail import DetailDocument
from lmtool.tui.documents.frames import FramesDocument
from lmtool.tui.documents.interleaved import InterleavedDocument
from lmtool.tui.documents.streams import StreamsDocument
from lmtool.tui.documents.table import TableDocument
from lmtool.tui.documents.text import SplitDocument, TextDocument
from lmtool.tui.documents.time import TimeDocument
from lmtool.tui.glyphs import ASCII, UNICODE
from lmtool.tui.runs import length
from lmtool.tui.view import View
from tests.tui.documents.watched import close, text, view_of
from tests.tui.scripted import conversation, event, request, tokens

DOCUMENTS = (
    StreamsDocument, InterleavedDocument, TextDocument, SplitDocument, TableDocument, DetailDocument, FramesDocument,
    TimeDocument,
)  # fmt: skip


@pytest.mark.parametrize("columns", [20, 33, 44, 58, 78, 118, 160])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_no_line_is_wider_than_the_pane(kind: type, columns: int, view: View) -> None:
    """At any width, with the cursor anywhere, each line fits; the anchor is a line that exists."""
    for row in range(len(view.state.tokens)):
        view.choose_token(row)
        document = kind(view, UNICODE)
        height = document.height(columns)
        anchor = document.anchor(columns)
        assert anchor is None or 0 <= anchor < height
        for y in range(height):
            line = document.line(y, columns)
            assert length(line) <= columns, text(line)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_nothing_yet(kind: type) -> None:
    """Before the first event a document says so, or shows nothing, and every move is harmless."""
    view = view_of([])
    document = kind(view, ASCII)
    for rows in (1, -1, 10**9, -(10**9)):
        document.move(rows)
    assert all(length(document.line(y, 60)) <= 60 for y in range(document.height(60)))
    close(view)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_what_a_model_says_steers_nothing(kind: type) -> None:
    """Escape sequences in tokens, prompts, errors and names come out as signs."""
    evil = "\x1b[2J\x07\r\u202e"
    view = view_of([
        event(0.0, "vocab", 0, {"5": evil, "6": evil, "7": evil}),
        request(0.1, 1, model=evil),
        tokens(0.2, (1, 7, -0.1)),
        event(0.3, "<", "TOKEN", [{"stream_id": 1, "error": evil}]),
    ])  # fmt: skip
    document = kind(view, UNICODE)
    for y in range(document.height(100)):
        shown = text(document.line(y, 100))
        assert shown.isprintable() or not set(shown) & set("\x1b\x07\r\u202e"), shown
    close(view)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_walking_through_ends_at_the_ends(kind: type) -> None:
    """A move further than there is goes to the first or last row, a click to its target."""
    view = view_of(conversation())
    document = kind(view, UNICODE)
    document.height(80)
    for rows in (-(10**9), 1, 1, -1, 10**9, -3):
        document.move(rows)
        document.height(80)
    target = next((run.target for y in range(document.height(80)) for run in document.line(y, 80) if run.target), None)
    if target is not None:
        document.click(target)
    close(view)
