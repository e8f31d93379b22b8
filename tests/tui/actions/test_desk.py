"""What every action works with."""

from __future__ import annotations

from lmtool.tui.documents.list import ListDocument
from lmtool.tui.runs import Run
from tests.tui.scripted import watching


async def test_messages() -> None:
    """A message stands in place of the keys, at most in three lines; one that stays is gone with the next key."""
    async with watching() as seen:
        seen.app.say("word " * 100, warning=True, stays=True)
        await seen.settle()
        assert seen.rows()[-3].startswith(" word word")
        assert seen.rows()[-1].endswith("…")
        await seen.press("j")
        assert seen.rows()[-1].endswith("q Quit")
        seen.app.say("soon gone")
        await seen.settle()
        assert seen.rows()[-1] == " soon gone"


async def test_reading_calls_back() -> None:
    """The line that enter was pressed on is told; nothing is told for esc."""
    async with watching() as seen:
        chosen: list[int] = []
        document = ListDocument([[Run("a", "", 7)]], cursor=">")
        seen.app.read("One", document, chosen.append)
        await seen.settle()
        await seen.press("escape")
        seen.app.read("One", document, chosen.append)
        await seen.settle()
        await seen.press("enter")
        assert chosen == [7]
