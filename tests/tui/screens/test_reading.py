"""A document over everything else."""

from __future__ import annotations

from lmtool.tui.documents.list import ListDocument
from lmtool.tui.runs import Run
from lmtool.tui.screens.reading import ReadingScreen
from tests.tui.scripted import watching


async def test_reading() -> None:
    """What is out of sight is counted; keys and pages scroll; esc, q and ? close."""
    async with watching() as seen:
        answers: list[int | None] = []
        for close in ("escape", "q", "question_mark"):
            document = ListDocument([[Run(f"line {i}")] for i in range(100)])
            seen.app.push_screen(
                ReadingScreen("Lines", document, seen.app.looks, seen.app.glyphs, chooses=False), answers.append
            )
            await seen.settle()
            assert "line 0" in seen.text()
            assert "esc closes" in seen.text()
            await seen.press("j", "pagedown")
            assert "line 0 " not in seen.text()
            await seen.press("G")
            assert "line 99" in seen.text()
            await seen.press(close)
        assert answers == [None] * 3


async def test_choosing() -> None:
    """Enter returns the target of the line under the cursor, a click that of its line."""
    async with watching() as seen:
        answers: list[int | None] = []
        for keys in (("j", "enter"), ()):
            document = ListDocument([[Run(f"line {i}", "", i)] for i in range(3)], cursor=">")
            screen = ReadingScreen("Lines", document, seen.app.looks, seen.app.glyphs, chooses=True)
            seen.app.push_screen(screen, answers.append)
            await seen.settle()
            if keys:
                await seen.press(*keys)
            else:
                await seen.pilot.click(screen.pane, offset=(4, 2))
                await seen.pilot.pause()
        assert answers == [1, 2]
