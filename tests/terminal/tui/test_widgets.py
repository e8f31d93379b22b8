"""Widgets that draw lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.style import Style
from textual.app import App, ComposeResult

from lmtool.terminal.tui import widgets
from lmtool.terminal.tui.documents.document import ListDocument
from lmtool.terminal.tui.runs import Run
from lmtool.terminal.tui.styles import Styles
from lmtool.terminal.tui.widgets import LinePane, strip_of, target_at

if TYPE_CHECKING:
    import pytest
    from textual.strip import Strip

    from lmtool.terminal.tui.runs import Line


class Shown(App[None]):
    """One pane of fifty lines, five of which fit."""

    CSS = "LinePane { height: 5; }"

    def __init__(self, document: ListDocument) -> None:
        super().__init__()
        self.pane = LinePane(document, Styles(), id="pane")

    def compose(self) -> ComposeResult:
        yield self.pane


def fifty(cursor: str = "") -> ListDocument:
    """Lines with numbers that can be chosen."""
    return ListDocument([[Run(f"line {i}", "", i)] for i in range(50)], cursor=cursor)


def test_strips() -> None:
    """Exactly as wide as asked; controls become signs; in plain mode our own signs are ASCII."""
    styles = Styles()
    assert strip_of([Run("abc"), Run("漢字")], styles, 5, Style()).text == "abc漢"
    assert strip_of([Run("a\x1b[2J")], styles, 12, Style()).text == "a⟨1b⟩[2J    "
    assert strip_of([Run("a…⏎")], Styles(ascii=True), 4, Style()).text == "a~$ "


def test_targets() -> None:
    """A column belongs to the run that covers it, by cells."""
    line = [Run("漢", "", 1), Run("ab", "", 2)]
    assert [target_at(line, column) for column in range(5)] == [1, 1, 2, 2, None]


async def test_the_cursor_stays_in_sight() -> None:
    """A cursor that moves is followed, with what comes before a jump; the ends are ends."""
    app = Shown(fifty(">"))
    async with app.run_test(size=(30, 10)):
        app.pane.draw()
        assert app.pane.text[0] == "> line 0"
        app.pane.document.move(6)
        app.pane.draw()
        assert app.pane.text[-1] == "> line 6"
        app.pane.document.move(20)
        app.pane.draw()
        assert app.pane.text[1] == "> line 26"
        app.pane.document.move(100)
        app.pane.draw()
        assert (app.pane.text[-1], app.pane.below, app.pane.above) == ("> line 49", 0, 45)


async def test_the_wheel_looks_elsewhere_without_moving_the_cursor() -> None:
    """Until the cursor is asked for again."""
    app = Shown(fifty(">"))
    async with app.run_test(size=(30, 10)) as pilot:
        app.pane.draw()
        await pilot._post_mouse_events([__import__("textual.events").events.MouseScrollDown], app.pane)
        assert app.pane.text[0] == "  line 3"
        app.pane.draw()
        assert app.pane.text[0] == "  line 3"
        app.pane.tie()
        app.pane.draw()
        assert app.pane.text[0] == "> line 0"


async def test_only_rows_that_changed_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lines refresh nothing; one other line refreshes its own row."""
    app = Shown(fifty())
    async with app.run_test(size=(30, 10)) as pilot:
        app.pane.draw()
        await pilot.pause()
        drawn: list[str] = []

        def counted(line: Line, *rest: Any) -> Strip:
            drawn.append("".join(run.text for run in line))
            return strip_of(line, *rest)

        monkeypatch.setattr(widgets, "strip_of", counted)
        app.pane.put([[Run(f"line {i}", "", i)] for i in range(5)])
        await pilot.pause()
        assert drawn == []
        app.pane.put([[Run("other" if i == 3 else f"line {i}", "", i)] for i in range(5)])
        await pilot.pause()
        assert drawn == ["other"]
