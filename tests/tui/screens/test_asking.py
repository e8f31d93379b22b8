"""A line to type into."""

from __future__ import annotations

from lmtool.tui.screens.asking import AskScreen
from tests.tui.scripted import watching


async def test_answers() -> None:
    """Enter returns what was typed unless the check says what is wrong; esc returns nothing."""
    async with watching() as seen:
        answers: list[str | None] = []
        asked = AskScreen(
            "Name", "any but [x]", seen.app.looks, check=lambda text: "not that one" if text == "x" else ""
        )
        seen.app.push_screen(asked, answers.append)
        await seen.settle()
        assert "any but [x]" in seen.text()
        await seen.press("x")
        assert "not that one" in seen.text()
        await seen.press("enter")
        assert answers == []
        await seen.press("q", "enter")
        assert answers == ["xq"]
        seen.app.push_screen(AskScreen("Name", "", seen.app.looks), answers.append)
        await seen.press("escape")
        assert answers == ["xq", None]


async def test_history() -> None:
    """Up and down go through what was typed before."""
    async with watching() as seen:
        answers: list[str | None] = []
        seen.app.push_screen(AskScreen("Name", "", seen.app.looks, value="new", history=["a", "b"]), answers.append)
        await seen.press("up", "up", "up", "down", "enter")
        assert answers == ["b"]
