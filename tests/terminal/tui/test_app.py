"""The app as a whole."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ConnectError, FileError, UsageError
from lmtool.terminal.tui.action import Action
from lmtool.terminal.tui.app import DRAWING_SHARE, LONGEST_PERIOD, SHORTEST_PERIOD, InspectorApp, Pace, run_inspector
from lmtool.terminal.tui.documents.text import TextDocument
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.sources.source import FileSource
from tests.terminal.tui.scripted import Scripted, Watched, conversation, tokens, watching
from tests.terminal.tui.sources_running import no_tokenizer

RECORDINGS = Path(__file__).parents[3] / "recordings"


async def opened(path: Path, options: InspectorOptions | None = None) -> str:
    """The screen of a trace once it is read."""
    app = InspectorApp(TraceFile(path), None, options or InspectorOptions(speed=float("inf")))
    async with app.run_test(size=(120, 36)) as pilot:
        seen = Watched(app, pilot, Scripted())
        await seen.wait_for(lambda: app.store.is_loaded, "the file to be read")
        await seen.settle()
        return seen.text()


def damaged(word: str) -> bytes:
    """A recording without its end record, or with another token in a line of as many."""
    whole = (RECORDINGS / "two_streams_interleaved.lmtp.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    if word == "cut":
        return b"".join(lines[:-1])
    place = whole.rindex(b'"token":') + len(b'"token":')
    return whole[:place] + (b"2" if whole[place : place + 1] == b"1" else b"1") + whole[place + 1 :]


class TestApp:
    """The app as a whole: sources that end, fail, cannot be read; crashes; modes of drawing."""

    async def test_two_traces_are_compared(self, tmp_path: Path) -> None:
        """Both are shown at once, at their ends; what can be read is, and that there is more is said."""
        whole = RECORDINGS / "one_greedy_stream.lmtp.jsonl"
        lines = whole.read_text().splitlines()
        broken = tmp_path / "broken.lmtp.jsonl"
        broken.write_text("\n".join([*lines[:-2], "[]", *lines[-2:]]) + "\n")
        sentence = "only the beginning of broken.lmtp.jsonl can be read"
        for path, told, speed in ((whole, "", float("inf")), (whole, "", 1.0), (broken, sentence, float("inf"))):
            app = InspectorApp(TraceFile(whole), None, InspectorOptions(speed=speed), TraceFile(path))
            async with app.run_test(size=(160, 36)) as pilot:
                seen = Watched(app, pilot, Scripted())
                await seen.wait_for(lambda: app.top_screen is not app.main, "the comparison")  # noqa: B023 - at once
                await seen.settle()
                assert "A 1/1" in seen.text()
                assert "B 1/1" in seen.text()
                await seen.press("escape")
                assert told in seen.text()
                assert " tokens · length" in seen.text()

    @pytest.mark.parametrize(
        "lines",
        [
            (f'[0, ">", 1, "GENERATE", {{"stream_id": 1, "prompt": {"[" * 900}{"]" * 900}}}]',),
            tuple(
                json.dumps(line)
                for line in (
                    [0, ">", 1, None, r'GENERATE {"stream_id": "\ud801", "prompt": "\udc00"}'],
                    [1, "<", 1, None, r'TOKEN [{"stream_id": "\ud801", "token": 7, "text": "\udfff"}]'],
                    [1, "<", 1, None, r'TOKEN [{"stream_id": "\ud801", "text": "\ud83d"}]'],
                )
            ),
            ('[0, "note", 1, "no stream"]',),
        ],
        ids=["deep", "surrogates", "empty"],
    )
    async def test_hostile_traces(self, lines: tuple[str, ...], tmp_path: Path) -> None:
        """Values nested deeply, halves of characters, a trace without streams: every pane and key bears them."""
        path = tmp_path / "hostile.lmtp.jsonl"
        path.write_text("\n".join(['{"lmtp_trace": 1}', *lines]) + "\n")
        trace = TraceFile(path)
        app = InspectorApp(trace, None, InspectorOptions(speed=float("inf")))
        async with app.run_test(size=(120, 36)) as pilot:
            seen = Watched(app, pilot, Scripted())
            await seen.wait_for(lambda: trace.is_loaded, "the file to be read")
            for key in "1m2vvv3j45cnNuGgB":
                await seen.press(key)
                assert app.failure is None

    async def test_a_screen_that_cannot_be_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ends the app and the test that waits for it, with what went wrong."""

        async def watch() -> None:
            async with asyncio.timeout(50), watching() as seen:
                monkeypatch.setattr(TextDocument, "line", lambda *_: 1 // 0)
                await seen.press("2", "v", "v")

        with pytest.raises(ZeroDivisionError):
            await watch()

    async def test_a_remote_that_goes_leaves_the_last_screen(self) -> None:
        """The header and the line below say so until a key is pressed; everything can still be looked at."""
        async with watching() as seen:
            seen.source.end(ConnectError("the server closed the connection", "start it again"))
            await seen.settle()
            assert "■ remote has gone" in seen.text()
            assert "the server closed the connection · start it again" in seen.text()
            await seen.press("2", "g")
            assert "' the'" in seen.text()
            assert "start it again" not in seen.text()
            assert "remote has gone" in seen.text()

    async def test_a_source_that_fails_before_anything_was_seen_is_an_error(self) -> None:
        """There is no screen worth keeping: the caller gets the error, and an exit code."""
        spool = EventStore()
        app = InspectorApp(spool, Scripted(error=ConnectError("nobody there")), InspectorOptions())
        assert await app.run_async(headless=True) == ConnectError.exit_code
        spool.close()
        assert isinstance(app.failure, ConnectError)

    async def test_a_frame_while_the_app_ends(self) -> None:
        """Screens go before timers: a frame between the two, with tokens that came last, finds none."""
        async with watching() as seen:
            seen.source.push([tokens(1.0, (2, 8, -0.5))])
        app = seen.app
        assert not app.screen_stack
        app.is_changed = False
        app._drawn = app._figures_of = (-1, -1, -1.0)
        assert not app._draw(0.0)

    async def test_what_comes_last_is_counted(self) -> None:
        """Counts and states are drawn now and then; the last of them too, though nothing comes after it."""
        async with watching() as seen:
            assert "1 running · 1 done" in seen.rows()[0]
            seen.source.push([tokens(1.0, (2, 8, -0.5)), tokens(1.1, (2, 9, -0.2), end="stop")])
            for _ in range(200):
                if " 2 done" in seen.rows()[0]:
                    break
                await seen.pilot.pause(0.02)
            assert " 2 done" in seen.rows()[0]
            assert "✓ stop" in seen.rows()[4]
            assert " 5/" in seen.rows()[4]

    async def test_a_source_that_is_over(self) -> None:
        """That is no trouble."""
        async with watching() as seen:
            seen.source.end()
            await seen.settle()
            assert "OVER" in seen.text()

    async def test_keys_and_filters_that_make_no_sense_are_refused_before_the_screen(self) -> None:
        """The source is closed all the same."""
        for options in (InspectorOptions(keys={"nothing": "x"}), InspectorOptions(filter="(")):
            source = Scripted()
            with pytest.raises(UsageError):
                await run_inspector(EventStore(), source, options)
            assert source.closed

    async def test_a_crash_is_handed_to_the_caller(self) -> None:
        """The app ends, and the mistake is known, not printed over the screen."""

        def broken(_: object) -> None:
            raise ZeroDivisionError

        spool = EventStore()
        app = InspectorApp(spool, Scripted(conversation()), InspectorOptions())
        app.call_later(app.do, Action("broken", (), "", "", broken))
        assert await app.run_async(headless=True) == 70
        spool.close()
        assert isinstance(app.failure, ZeroDivisionError)

    async def test_traces(self) -> None:
        """A whole one, one that was cut, and one that is none."""
        assert "8 done" in await opened(RECORDINGS / "eight_streams_interleaved.lmtp.jsonl")
        with pytest.raises(FileError):
            await opened(Path(__file__))

    async def test_a_cut_trace_is_shown_as_far_as_it_goes(self, tmp_path: Path) -> None:
        """And the header says that it is cut."""
        whole = (RECORDINGS / "eight_streams_interleaved.lmtp.jsonl").read_bytes()
        cut = tmp_path / "cut.lmtp.jsonl"
        cut.write_bytes(whole[: len(whole) // 2])
        shown = await opened(cut)
        assert "■ cut" in shown
        assert "1/7" in shown

    @pytest.mark.parametrize("source_first", [True, False])
    @pytest.mark.parametrize("word", ["cut", "altered"])
    async def test_a_bad_end_is_told_whoever_reads_the_file_to_it(
        self, word: str, source_first: bool, tmp_path: Path
    ) -> None:
        """The source of a file reads it beside the app; the hash of the end record counts as well."""
        path = tmp_path / "bad.lmtp.jsonl"
        path.write_bytes(damaged(word))
        source = FileSource(path, lambda _: None, find_tokenizer=no_tokenizer)
        if source_first:
            await source.run(source.file.feed)
        app = InspectorApp(source.file, None if source_first else source, InspectorOptions(speed=float("inf")))
        async with app.run_test(size=(120, 36)) as pilot:
            seen = Watched(app, pilot, Scripted())
            await seen.wait_for(lambda: app.status.trouble, "the damage to be told")
            await seen.settle()
            assert f"■ {word}" in seen.text()
            assert f"bad.lmtp.jsonl is {word}: " in seen.text()
            assert "1/1" in seen.text()
        await source.close()
        source.file.close()

    async def test_a_file_is_played(self) -> None:
        """From its beginning, at its speed; `at` stands still at a moment."""
        path = RECORDINGS / "eight_streams_interleaved.lmtp.jsonl"
        slow = await opened(path, InspectorOptions(speed=0.0001))
        assert "0.000 s" in slow
        assert "0.0001\u00d7" in slow
        at = await opened(path, InspectorOptions(at=0.02))
        assert "PAUSED" in at
        assert "0.020 s" in at

    async def test_exit_at_end(self) -> None:
        """A file that was shown, and a source that is over, end the app when that is asked for."""
        options = InspectorOptions(speed=float("inf"), exit_at_end=True)
        app = InspectorApp(TraceFile(RECORDINGS / "eight_streams_interleaved.lmtp.jsonl"), None, options)
        async with app.run_test() as pilot:
            seen = Watched(app, pilot, Scripted())
            await seen.wait_for(lambda: app.return_value is not None, "the end")
        assert app.return_value == 0
        async with watching(options=InspectorOptions(exit_at_end=True)) as seen:
            seen.source.end()
            await seen.pilot.pause()
            assert seen.app.return_value == 0

    async def test_no_color(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing on the screen has a colour; an empty NO_COLOR asks for nothing."""
        monkeypatch.setenv("NO_COLOR", "1")
        async with watching() as seen:
            assert seen.app.no_color
            styles = [seg.style for strip in seen.app.screen._compositor.render_strips() for seg in strip if seg.style]
            filtered = [f.apply(list(strip), seen.app.screen.background_colors[0]) for f in seen.app.get_line_filters()
                        for strip in seen.app.screen._compositor.render_strips()]  # fmt: skip
            assert styles
            colours = {str(seg.style.color) for line in filtered for seg in line if seg.style and seg.style.color}
            assert not [c for c in colours if "default" not in c]
            await seen.press("T")
            assert "there are no colours" in seen.text()
        monkeypatch.setenv("NO_COLOR", "")
        async with watching() as seen:
            assert not seen.app.no_color
        assert "NO_COLOR" not in os.environ

    async def test_ascii(self) -> None:
        """With `ascii` nothing else is drawn, in any pane and over it."""
        events = [event for event in conversation() if event.time < 0.55]
        async with watching(events, InspectorOptions(ascii=True)) as seen:
            for keys in (("1",), ("v",), ("v",), ("v",), ("question_mark",), ("escape", "B"), ("escape", "slash")):
                await seen.press(*keys)
                assert seen.text().isascii(), [c for c in seen.text() if not c.isascii()]

    async def test_a_theme_that_there_is_not(self) -> None:
        """Is told; the default one is used."""
        async with watching(options=InspectorOptions(theme="neon")) as seen:
            assert "no theme 'neon'" in seen.text()

    async def test_many_tokens_at_once_are_drawn_in_one_frame(self) -> None:
        """Cost is per frame: ten thousand tokens between two frames draw each visible row once."""
        async with watching() as seen:
            seen.source.push([tokens(2.0 + i / 1000, *((2, 7 + k % 3, -0.5) for k in range(100))) for i in range(100)])
            await seen.settle()
            assert len(seen.app.view.state.tokens) == 10_009
            assert "10009" in seen.text().replace(",", "") or "2.099" in seen.text()


class TestPace:
    """How often is drawn."""

    def test_slow_frames_make_frames_rare(self) -> None:
        """Drawing takes its share of the time and no more, down to eight frames a second."""
        pace = Pace()
        assert pace.period == SHORTEST_PERIOD
        pace.add(0.02)
        assert pace.period == pytest.approx(0.02 / DRAWING_SHARE)
        pace.add(0.2)
        assert pace.period == LONGEST_PERIOD

    def test_quick_frames_bring_them_back(self) -> None:
        """After a while, little by little."""
        pace = Pace()
        pace.add(0.02)
        periods = []
        for _ in range(60):
            pace.add(0.001)
            periods.append(pace.period)
        assert periods == sorted(periods, reverse=True)
        assert SHORTEST_PERIOD < periods[0] < 0.02 / DRAWING_SHARE
        assert periods[-1] == SHORTEST_PERIOD


class TestOptions:
    """Options of the inspector."""

    def test_options_are_light(self) -> None:
        """The command line reads them without textual."""
        code = "import sys, lmtool.terminal.tui.options; sys.exit(bool({'textual', 'asyncio'} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROGRAM = """
import contextlib, sys
from lmtool.terminal.tui.app import discard_lost_output, terminal_is_lost
print(terminal_is_lost(), flush=True)
with contextlib.suppress(OSError):  # of a terminal that has gone
    sys.stdin.readline()
sys.{stream}.write("left over")
{call}
sys.exit(5)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(("call", "status"), [("discard_lost_output()", 5), ("", 120)], ids=["discarded", "not"])
def test_status(stream: str, call: str, status: int) -> None:
    """It is the program's own, though output is left that nobody can take; without the call it is the interpreter's."""
    master, slave = pty.openpty()
    program = [sys.executable, "-c", PROGRAM.format(stream=stream, call=call)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, env=buffered) as process:
        os.close(slave)
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(master, 100)
        assert said == b"False\r\n"
        os.close(master)
        assert process.wait(30) == status


def test_no_terminal() -> None:
    """A file or a pipe at stdin is none that has gone; what is written arrives."""
    program = [sys.executable, "-c", PROGRAM.format(stream="stdout", call="discard_lost_output()")]
    done = subprocess.run(program, input="", capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (5, "False\nleft over")
