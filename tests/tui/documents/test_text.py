"""The text of a stream."""

from __future__ import annotations

from lmtool.tui.documents.text import SplitDocument, TextDocument
from lmtool.tui.glyphs import UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import close, rows, text, view_of
from tests.tui.scripted import event, request, tokens


def test_text(view: View) -> None:
    """Prompt, then tokens; a character of two tokens is whole; the cursor's token stands between signs."""
    view.choose_token(2)
    assert rows(TextDocument(view, UNICODE), 40) == ["Hello there the▕ fox▏🙂", "."]


def test_colour_belongs_to_the_last_token_of_a_character(view: View) -> None:
    """The emoji has the style and the target of the token that completed it."""
    line = TextDocument(view, UNICODE).line(0, 40)
    emoji = next(run for run in line if "🙂" in run.text)
    assert emoji.target == 5
    assert text([emoji]) == "🙂"


def test_move_by_lines(view: View) -> None:
    """Up from the last line goes to a token of the line above."""
    view.choose_token(7)
    document = TextDocument(view, UNICODE)
    document.height(40)
    document.move(-1)
    assert view.position(view.token) < 5


def test_a_vocabulary_that_comes_late() -> None:
    """What was shown as numbers is laid out again: words and lines are those of the text."""
    view = view_of([request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
    document = TextDocument(view, UNICODE)
    assert rows(document, 40) == ["⟨#5⟩⟨#6⟩⟨#7⟩▕⟨#8⟩▏"]
    view.state.feed([event(0.3, "vocab", 0, {"5": "Oh", "6": ",", "7": " the\n", "8": "fox"})])
    assert rows(document, 40) == ["Oh, the", "▕fox▏"]
    close(view)


def test_split(view: View) -> None:
    """Streams side by side, each under its heading; as many as there is room for."""
    document = SplitDocument(view, UNICODE, rows=5)
    shown = rows(document, 80)
    assert shown[0].startswith("▸1/1 6 tok stop")
    assert "1/2 3 tok running" in shown[0]
    assert "Hello there the fox🙂" in shown[1]
    assert len(document.streams(30)) == 1
