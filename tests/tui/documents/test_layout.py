"""How tokens break into lines."""

from __future__ import annotations

from lmtool.tui.documents.layout import Layout
from lmtool.tui.view import View
from tests.tui.documents.watched import close, view_of
from tests.tui.scripted import event, request, tokens


def lines(layout: Layout) -> list[str]:
    """Text of each line."""
    return ["".join(part.text for part in line) for line in layout.lines]


def test_a_token_that_does_not_fit_goes_to_the_next_line_whole(view: View) -> None:
    """Unless it is wider than a line."""
    layout = Layout(view.state, view.state.streams[0], 16)
    layout.extend(6)
    assert lines(layout) == ["Hello there the", " fox🙂", "."]
    assert layout.line_of == [0, 1, 1, 1, 1, 2]


def test_blanks_as_signs(view: View) -> None:
    """Spaces and line feeds can be seen on request."""
    layout = Layout(view.state, view.state.streams[0], 40, blanks=True)
    layout.extend(6)
    assert lines(layout) == ["Hello·there·the·fox🙂⏎", "."]


def test_a_very_long_token_is_broken() -> None:
    """Ten thousand characters take as many lines as they need, wide ones never cross the edge."""
    words = {"5": "x", "6": "y", "7": "a" * 10_000, "8": "漢" * 30}
    view = view_of([event(0, "vocab", 0, words), request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
    layout = Layout(view.state, view.state.streams[0], 41)
    layout.extend(2)
    assert sum(map(len, lines(layout))) == 10_032
    assert max(sum(2 if c == "漢" else 1 for c in line) for line in lines(layout)) <= 41
    close(view)
