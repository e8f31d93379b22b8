"""What went over the wire."""

from __future__ import annotations

import json

from lmtool.tui.documents.frames import FramesDocument, indented
from lmtool.tui.glyphs import ASCII, UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import rows


def test_rows(view: View) -> None:
    """Time, connection, direction, text; long ones cut with a sign."""
    shown = rows(FramesDocument(view, UNICODE), 60)
    assert shown[0].split(maxsplit=3)[:3] == ["0.000", "1", "·"]
    sent = next(row for row in shown if "GENERATE" in row)
    assert sent.split()[2] == ">"
    assert sent.endswith("…")
    assert next(row for row in shown if "TOKEN" in row).split()[2] == "<"
    assert rows(FramesDocument(view, ASCII), 60)[0].split()[2] == "."


def test_the_frame_of_the_token_is_marked(view: View) -> None:
    """Both ways: a click on a frame chooses its first token."""
    view.choose_token(2)
    document = FramesDocument(view, UNICODE)
    marked = [y for y, row in enumerate(rows(document, 60)) if row.startswith("▸")]
    assert marked == [view.state.tokens.frames[2]]
    document.click(view.state.tokens.frames[0])
    assert view.token == 0


def test_whole_frame_with_line_breaks(view: View) -> None:
    """Everything that was sent, the command first."""
    whole = FramesDocument(view, UNICODE).whole(view.state.tokens.frames[0])
    command, _, payload = indented(whole).partition(" ")
    assert command == "TOKEN"
    assert json.loads(payload)[0]["token"] == 7
    assert indented("no JSON") == "no JSON"
