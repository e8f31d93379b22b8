"""Screens: the panes, and what opens over them."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from lmtool.terminal.tui.documents.document import ListDocument
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.runs import Run
from lmtool.terminal.tui.screens.dialogs import AskScreen, ReadingScreen
from tests.terminal.tui.screens_as_text import KEYS, SIZES, path_of, screen
from tests.terminal.tui.scripted import Scripted, event, request, tokens, watching

PANES = ("1 Streams", "2 Split", "3 Token", "4 Frames", "5 Time")


class Between(Scripted):
    """A source that others use."""

    advice = "point a client at ws://127.0.0.1:8081/"


class TestMainScreen:
    """The five panes at several sizes, in colour and without, and the mouse."""

    @pytest.mark.parametrize("color", [True, False])
    async def test_wide(self, color: bool) -> None:
        """120x36: header, all panes, legend, timeline and keys, each row exactly as wide as the screen."""
        async with watching(options=InspectorOptions(color=color)) as seen:
            rows = seen.rows()
            shown = seen.text()
            assert len(rows) == 36
            for title in PANES:
                assert title in shown
            assert rows[0].startswith(" ⬤ LIVE  scripted :8081→:8080  tiny  1 connection  1 running · 1 done")
            assert "▸● 1/1" in rows[3]
            assert " prob  " in shown
            assert "▸1/1 6 tokens · stop ─" in shown
            assert "Hello there│ the fox🙂" in shown
            assert " '.' id 9  p .951 0.1b" in shown
            assert rows[-2].strip().startswith("0")
            assert rows[-1].endswith("q Quit")
            assert max(map(cell_len, rows)) <= 120
            assert {row[-1] for row in rows[1:-2]} <= set("╮│╯")

    @pytest.mark.parametrize("color", [True, False])
    @pytest.mark.parametrize(("columns", "height"), [(80, 24), (60, 20), (40, 10)])
    async def test_narrow(self, columns: int, height: int, color: bool) -> None:
        """Below 90 columns one pane at a time, with tabs; keys and tab go from pane to pane."""
        async with watching(size=(columns, height), options=InspectorOptions(color=color)) as seen:
            assert "[1 Streams]" in seen.rows()[1]
            assert "▸● 1/1" in seen.text()
            for key, word in zip("2345", ("1/1", "logprob", "' dog' .223", "p50"), strict=True):
                await seen.press(key)
                assert f"[{key} " in seen.rows()[1]
                assert word in seen.text()
                assert len(seen.rows()) == height
                assert seen.rows()[-1].endswith("q Quit")
            await seen.press("tab")
            assert "[1 Streams]" in seen.rows()[1]

    async def test_too_small_is_a_sentence_and_everything_goes_on(self) -> None:
        """30x8: the size that is needed; back at a larger size all is there."""
        async with watching(size=(30, 8)) as seen:
            assert "30x8 is too small" in seen.text()
            assert "Streams" not in seen.text()
            await seen.press("space")
            await seen.pilot.resize_terminal(120, 36)
            await seen.settle()
            for title in PANES:
                assert title in seen.text()
            assert "PAUSED" in seen.text()

    async def test_resize_while_running(self) -> None:
        """Every size draws itself anew."""
        async with watching() as seen:
            for columns, height in ((60, 20), (160, 45), (90, 30), (89, 30), (41, 11), (120, 24)):
                await seen.pilot.resize_terminal(columns, height)
                await seen.settle()
                rows = seen.rows()
                assert len(rows) == height
                assert max(map(cell_len, rows)) <= columns
                assert ("4 Frames ─" in seen.text()) is (columns >= 90)

    async def test_clicks(self) -> None:
        """A click chooses a stream, a token, a frame, a moment, a key, a tab."""
        async with watching() as seen:
            main, view = seen.app.main, seen.app.view
            await seen.pilot.click(main.panes["streams"], offset=(8, 3))
            await seen.settle()
            assert view.stream == 1
            await seen.pilot.click(main.panes["tokens"], offset=(17, 1))
            await seen.settle()
            assert view.row == 2
            assert main.pane == 1
            await seen.pilot.click(main.timeline, offset=(60, 0))
            await seen.settle()
            assert 0.3 < view.time < 0.6
            await seen.pilot.click(main.footer, offset=(8, 0))
            await seen.settle()
            assert view.moment is None
            await seen.pilot.resize_terminal(60, 20)
            await seen.settle()
            await seen.pilot.click(main.tabs, offset=(15, 0))
            await seen.settle()
            assert main.pane == 1

    async def test_markup_is_never_interpreted(self) -> None:
        """Brackets in a filter, and so in a title, are brackets."""
        async with watching(options=InspectorOptions(filter='"[bold]x[/bold]"')) as seen:
            assert 'filter: "[bold]x[/bold]"' in seen.text()

    async def test_what_is_out_of_sight_is_counted(self) -> None:
        """The border says how many lines are above and below."""
        async with watching(size=(120, 24)) as seen:
            await seen.press("4", "g")
            assert "↓" in seen.text()
            await seen.press("G")
            assert "↑" in seen.text()

    @pytest.mark.parametrize("columns", [120, 90, 60, 40])
    async def test_states_stand_under_their_heading(self, columns: int) -> None:
        """In the terminal, whatever is drawn to their left: wide characters and emoji take two columns."""
        words = event(0.0, "vocab", 0, {"7": "漢字かな", "8": "🙂", "13": "e\u0301"})
        prompts = ["plain", "漢字 " * 20, "🙂👍🏽", [7, 8, 13]]
        asked = [request(0.1, i, prompt=prompt) for i, prompt in enumerate(prompts, 1)]
        came = [tokens(0.2, *((i, last, -0.5) for i, last in enumerate((7, 8, 13, 7), 1)))]
        async with watching([event(0.0, "open", {"peer": "client"}), words, *asked, *came], size=(columns, 40)) as seen:
            drawn = seen.rows()
            heading = next(row for row in drawn if "tok/max" in row)
            cells = [row for row in drawn if "▶ run" in row and "●" in row]
            assert len(cells) == 4
            wanted = cell_len(heading.partition("state")[0])
            assert [cell_len(row.partition("▶ run")[0]) for row in cells] == [wanted] * 4

    async def test_nothing_yet(self) -> None:
        """Where requests can be sent, the key is told by which; elsewhere what the source knows."""
        async with watching([]) as seen:
            assert "no stream yet: i types a prompt" in seen.text()
        async with watching([], InspectorOptions(keys={"prompt": "P"}), source=Between()) as seen:
            assert "no stream yet: point a client at ws://127.0.0.1:8081/; P types a prompt" in seen.text()
        async with watching([], source=Scripted(asks=False)) as seen:
            assert "no stream yet" in seen.text()
            assert "no stream yet:" not in seen.text()

    @pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
    @pytest.mark.parametrize("keys", KEYS, ids="".join)
    async def test_the_whole_screen(self, size: tuple[int, int], keys: tuple[str, ...]) -> None:
        """Every character of it; see tests.terminal.tui.screens_as_text for how to keep another one."""
        assert await screen(size, keys) == path_of(size, keys).read_text(encoding="utf-8")


class TestAskScreen:
    """A line to type into."""

    async def test_answers(self) -> None:
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

    async def test_history(self) -> None:
        """Up and down go through what was typed before."""
        async with watching() as seen:
            answers: list[str | None] = []
            seen.app.push_screen(AskScreen("Name", "", seen.app.looks, value="new", history=["a", "b"]), answers.append)
            await seen.press("up", "up", "up", "down", "enter")
            assert answers == ["b"]


class TestReadingScreen:
    """A document over everything else."""

    async def test_reading(self) -> None:
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

    async def test_choosing(self) -> None:
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
