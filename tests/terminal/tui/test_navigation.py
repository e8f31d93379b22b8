"""Every key that changes what is looked at, pressed."""

from __future__ import annotations

import pytest

from lmtool.terminal.tui.options import InspectorOptions
from tests.terminal.tui.scripted import conversation, request, tokens, watching


async def test_keys_of_panes() -> None:
    """1 to 5, tab and shift+tab give a pane the keys; z shows it alone, esc all again."""
    async with watching() as seen:
        for key in "54321":
            await seen.press(key)
            assert seen.app.main.pane == int(key) - 1
        await seen.press("shift+tab")
        assert seen.app.main.pane == 4
        await seen.press("tab", "tab")
        assert seen.app.main.pane == 1
        await seen.press("z")
        assert "[2 Tokens]" in seen.text()
        assert "4 Frames ─" not in seen.text()
        await seen.press("escape")
        assert "4 Frames ─" in seen.text()


async def test_rows_and_tokens() -> None:
    """J and k go along the rows of the pane, h and l along the stream; arrows do the same."""
    async with watching(options=InspectorOptions(mode="interleaved")) as seen:
        view = seen.app.view
        await seen.press("j")
        assert view.current is not None
        assert view.current.label == "1/2"
        await seen.press("k")
        assert view.current.label == "1/1"
        await seen.press("h", "left")
        assert view.position(view.token) == 3
        await seen.press("l")
        assert view.position(view.token) == 4
        await seen.press("right", "right")
        assert view.row is None
        await seen.press("2", "up")
        assert view.row is not None
        await seen.press("g")
        assert view.row == 0
        await seen.press("down")
        assert view.row == 1
        await seen.press("pagedown", "pageup")
        await seen.press("end")
        assert view.row is None
        await seen.press("home")
        assert view.row == 0
        await seen.press("G")
        assert view.row is None


async def test_surprising_tokens() -> None:
    """N and N go from surprising token to surprising token, u to the least likely, t changes what surprises."""
    async with watching() as seen:
        view = seen.app.view
        await seen.press("2", "N")
        assert view.state.texts.of_row(view.token) == " fox"
        await seen.press("n")
        assert "no token above 4 bits after this one" in seen.text()
        await seen.press("G", "u")
        assert view.state.texts.of_row(view.token) == " fox"
        await seen.press("t")
        assert view.threshold == 6.0


async def test_bars() -> None:
    """In the pane of a token j and k choose an alternative."""
    async with watching() as seen:
        await seen.press("2", "g", "3", "j", "j", "k")
        assert seen.app.view.bar == 1
        await seen.press("G")
        assert seen.app.view.bar == 2


async def test_pause_holds_back() -> None:
    """Space holds the view, what comes meanwhile is kept and counted; space again shows it."""
    async with watching(options=InspectorOptions(mode="interleaved")) as seen:
        await seen.press("space")
        seen.source.push([tokens(2.0, (2, 8, -0.1), (2, 9, -0.2))])
        await seen.settle()
        assert "PAUSED +2 held back" in seen.text()
        assert not [row for row in seen.app.main.panes["tokens"].text if "2.000" in row]
        await seen.press("space")
        assert "LIVE" in seen.text()
        assert [row for row in seen.app.main.panes["tokens"].text if "2.000" in row]


async def test_new_tokens_are_counted_while_the_cursor_stands() -> None:
    """With the cursor on a token the view stays there and says how many are new; G goes along again."""
    async with watching() as seen:
        await seen.press("2", "g")
        seen.source.push([tokens(2.0, (2, 8, -0.1))])
        await seen.settle()
        assert f"{len(seen.app.view.state.tokens) - 1} new ↓ (G)" in seen.text()
        await seen.press("G")
        assert "new ↓" not in seen.text()


async def test_moments() -> None:
    """[ ] go by frames, { } by seconds, m marks a moment and ' goes to marks, those of the trace as well."""
    async with watching() as seen:
        view = seen.app.view
        await seen.press("[")
        assert view.time == pytest.approx(0.7)
        await seen.press("]")
        assert view.time == pytest.approx(0.9)
        await seen.press("{")
        assert view.time == 0.0
        await seen.press("}")
        assert view.moment is None
        await seen.press("[", "4", "m")
        assert view.time_marks == [0.7]
        await seen.press("'")
        assert view.time == pytest.approx(0.55)
        await seen.press("<")
        assert "a file is played" in seen.text()
        await seen.press(">")


async def test_looks() -> None:
    """C and C change the colours, v the view, w shows blanks, T changes the theme; the legend names the mode."""
    async with watching() as seen:
        for mode in ("surprisal", "entropy", "rank", "gap", "stream", "prob"):
            await seen.press("c")
            assert f"heat: {mode}" in seen.text()
            assert f" {mode} " in seen.text()
        await seen.press("C")
        assert seen.app.view.palette == "green-red"
        for title in ("2 Interleaved", "2 Text", "2 Table", "2 Split"):
            await seen.press("v")
            assert title in seen.text()
        await seen.press("w")
        assert "·fox" in seen.text()
        before = seen.app.theme
        await seen.press("T")
        assert seen.app.theme != before


async def test_follow() -> None:
    """F shows the tokens of one stream only, and all again."""
    async with watching() as seen:
        await seen.press("j", "f")
        assert "only 1/2" in seen.text()
        await seen.press("escape")
        assert "only 1/2" not in seen.text()


async def test_filter() -> None:
    """/ asks for a filter, says what is wrong with it while it is typed, and esc clears it."""
    async with watching() as seen:
        await seen.press("slash", *"p<.1 (")
        assert "cannot be understood" in seen.text()
        await seen.press("enter")
        assert seen.app.view.filter is None
        await seen.press("backspace", "backspace", "enter")
        assert "filter: p<.1" in seen.text()
        assert list(seen.app.view.token_rows()) == [2]
        await seen.press("escape")
        assert "filter: all" in seen.text()
        await seen.press("slash", *"err", "escape")
        assert seen.app.view.filter is None


async def test_help_of_the_pane() -> None:
    """F1 says what the pane shows, its words, its keys and the scale of colours; esc closes it."""
    async with watching() as seen:
        await seen.press("5", "f1")
        assert "Time: gaps between frames" in seen.text()
        assert "stall: a gap over 50 ms" in seen.text()
        assert "show the moment one second later" in seen.text()
        await seen.press("j", "k", "pagedown", "G", "g", "escape")
        assert seen.app.screen is seen.app.main
        await seen.press("f1", "q")
        assert seen.app.screen is seen.app.main


async def test_raw_frame() -> None:
    """Enter shows the whole frame of the token, with line breaks."""
    async with watching() as seen:
        await seen.press("2", "g", "enter")
        assert "Frame 4 at 0.400000 s" in seen.text() or "Frame" in seen.text()
        assert '"stream_id": 1' in seen.text()


async def test_compare() -> None:
    """= compares the marked streams, or two of the same prompt, and shows where they part."""
    async with watching() as seen:
        await seen.press("=")
        assert "Compare 1/1 with 1/2" in seen.text()
        await seen.press("escape", "1", "g", "m", "j", "m")
        assert seen.app.view.stream_marks == [0, 1]
        await seen.press("=")
        assert "Compare 1/1 with 1/2" in seen.text()
        assert "1 token" in seen.text()


async def test_remapped_keys() -> None:
    """Settings give an action other keys; the old one does nothing then."""
    async with watching(options=InspectorOptions(keys={"pause": "p"})) as seen:
        await seen.press("space")
        assert not seen.app.view.paused
        await seen.press("p")
        assert seen.app.view.paused
        assert " p Pause" in seen.text()


async def test_frames_and_tokens_are_linked_both_ways() -> None:
    """Choosing a frame chooses its token, choosing a token its frame."""
    async with watching() as seen:
        view = seen.app.view
        await seen.press("4", "k")
        frame = view.current_frame
        assert view.token in view.state.tokens_of_frame(frame)
        await seen.press("2", "g")
        assert view.current_frame == view.state.tokens.frames[0]


async def test_one_stream_that_nothing_can_be_compared_with() -> None:
    """= says what to mark."""
    events = [*conversation()[:4], request(0.4, 7, prompt=[6])]
    async with watching(events) as seen:
        await seen.press("=")
        assert "mark two streams" in seen.text()
