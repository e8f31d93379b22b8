"""Consoles of a conversation on a scripted terminal; `test_repl` has a program on a real one."""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from lmtool.settings.terminal import Output
from lmtool.terminal.chat.console import Event, LineConsole, PromptConsole, Submit, open_console
from lmtool.terminal.chat.render import StyledOutput
from lmtool.terminal.chat.repl import CommandCompleter

PATIENCE = 30


def styled(*, terminal: bool) -> StyledOutput:
    """Return an output without colours."""
    return StyledOutput(Output(color=False, note_color=False, terminal=terminal), "none")


class TestPromptConsole:
    """A prompt at the bottom of a terminal, answers above it."""

    @asynccontextmanager
    async def console(self) -> AsyncIterator[tuple[PromptConsole, PipeInput, io.StringIO]]:
        """A console with keys from a pipe and a screen in memory, 40 columns wide."""
        screen = io.StringIO()
        output = Vt100_Output(screen, lambda: Size(24, 40), term="xterm", enable_cpr=False)
        with create_pipe_input() as keys:
            made = PromptConsole(styled(terminal=True), CommandCompleter(), input=keys, output=output)
            made.start()
            try:
                yield made, keys, screen
            finally:
                await made.stop()

    @staticmethod
    async def events(console: PromptConsole, count: int) -> list[Event]:
        """Wait for so many events."""
        return [await asyncio.wait_for(console.events.get(), PATIENCE) for _ in range(count)]

    @staticmethod
    async def shown(screen: io.StringIO, condition: Callable[[str], bool]) -> str:
        """Wait until the screen's output fulfils the condition."""
        async with asyncio.timeout(PATIENCE):
            while not condition(screen.getvalue()):
                await asyncio.sleep(0.01)
        return screen.getvalue()

    @pytest.mark.parametrize(
        ("keys", "line"),
        [
            ("Hi\r", "Hi"),
            ("abc\x1b[D\x1b[DX\r", "aXbc"),
            ("one two\x17three\r", "one three"),
            ("日本\x1b[DX\r", "日X本"),
            ("a👩‍👩‍👧b\x1b[D\x1b[DX\r", "aX👩‍👩‍👧b"),
            ("a👩‍👩‍👧b\x1b[D\x1b[D\x1b[CX\r", "a👩‍👩‍👧Xb"),
            ("a👩‍👩‍👧\x7fb\r", "ab"),
            ("🇩🇪🇫🇷\x02X\r", "🇩🇪X🇫🇷"),
            ("👍🏽e\u0301\x1b[D\x1b[D\x1b[3~\r", "e\u0301"),
            ("❤️\x01\x06X\r", "❤️X"),
            ("ab\x1b[D\x1b[D\x1b[D\x7fX\x1b[C\x1b[C\x1b[C\x1b[3~Y\r", "XabY"),
            ("\x1b[200~two\rlines\r\n\x1b[201~\r", "two\nlines"),
            ("/sys\tBe brief.\r", "/system Be brief."),
            ("/?\t\r", "/?"),
            ("Hi temp\t1\r", "Hi temperature=1"),
            ("one\x1b\rtwo\r", "one\ntwo"),
            ("one\\\rtwo\r", "one\ntwo"),
            ("a\\b\r", "a\\b"),
            ("/set temp\t 1\r", "/set temperature 1"),
            ("/heat ent\t\r", "/heat entropy"),
            ("Hello /he\t\r", "Hello /he"),
        ],
    )
    async def test_editing(self, keys: str, line: str) -> None:
        """Keys edit as in a shell, a paste keeps its line feeds, Tab completes commands and their arguments."""
        async with self.console() as (console, pipe, _):
            pipe.send_text(keys)
            assert await self.events(console, 1) == [Submit(line)]

    async def test_a_narrower_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The prompt is drawn anew from its first line, wherever the terminal that breaks its lines anew has that."""
        for variable, rows in (("TMUX", 3), ("XTERM_VERSION", 1)):
            for name in ("TMUX", "STY", "XTERM_VERSION"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv(variable, "x")
            size, screen = Size(24, 40), io.StringIO()
            output = Vt100_Output(screen, lambda: size, term="xterm", enable_cpr=False)  # noqa: B023 - of this round
            with create_pipe_input() as keys:
                made = PromptConsole(styled(terminal=True), CommandCompleter(), input=keys, output=output)
                made.start()
                keys.send_text("y" * 70)  # two lines of 40 columns, the cursor in column 32 of the second
                await self.shown(screen, lambda written: written.count("y") == 70)
                size, before = Size(24, 20), len(screen.getvalue())
                made._session.app._on_resize()
                await made.stop()
            ups = [int(n or 1) for n in re.findall(r"\x1b\[(\d*)A", screen.getvalue()[before:].partition("y")[0])]
            assert sum(ups) == rows

    async def test_events(self) -> None:
        """Lines, Ctrl-C and Ctrl-D arrive in order; several lines may be typed at once."""
        async with self.console() as (console, pipe, _):
            pipe.send_text("one\rtwo\r\x03\x04")
            assert await self.events(console, 4) == [Submit("one"), Submit("two"), "interrupt", "end"]

    async def test_clear_line(self) -> None:
        """What was typed can be discarded, once."""
        async with self.console() as (console, pipe, screen):
            pipe.send_text("half a line")
            await self.shown(screen, lambda text: "line" in text)
            assert console.clear_line()
            assert not console.clear_line()
            pipe.send_text("\r")
            assert await self.events(console, 1) == [Submit("")]

    async def test_output_above_the_prompt(self) -> None:
        """Full lines are written once, the unfinished one is drawn with the prompt and kept at the end."""
        async with self.console() as (console, _, screen):
            console.prompt("7> ")
            console.put([("unfin", "")])
            await self.shown(screen, lambda text: "unfin" in text and "7>" in text)
            console.put([("ished\nnext", "1")])
            await self.shown(screen, lambda text: "unfinished\n" in text and "next" in text)
            console.say("words " * 20)
        above = screen.getvalue()
        assert above.count("unfinished\n") == 1
        assert "nextwords words words words words words\n  words" in above
        assert console.columns == 40

    async def test_no_escape_sequences_of_a_model(self) -> None:
        """Control characters in an answer or an echoed line are shown, neither sent nor interpreted as styles."""
        async with self.console() as (console, _, screen):
            console.put([("\x1b]0;title\x07 \x1b[31mred\x01\x02", "")])
            await self.shown(screen, lambda text: "red" in text)
            console.put([("\n", "")])
            console.echo("\x1b[2J")
        assert "\x1b]0;" not in screen.getvalue()
        assert "\x1b[31m" not in screen.getvalue()
        assert "\x1b[2J" not in screen.getvalue()
        assert "⟨1b⟩]0;title⟨07⟩ ⟨1b⟩[31mred⟨01⟩⟨02⟩\n" in screen.getvalue()
        assert "⟨1b⟩[2J\n" in screen.getvalue()


@pytest.mark.parametrize(("term", "plain"), [("dumb", True), ("", True), ("xterm", False)])
async def test_choice(term: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can move its cursor gets a prompt; others, and files, get plain lines."""
    controller, side = os.openpty()
    with os.fdopen(side, "r", encoding="utf-8") as stdin, os.fdopen(os.dup(side), "w", encoding="utf-8") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setenv("TERM", term)
        for terminal in (True, False):
            async with open_console(styled(terminal=terminal), CommandCompleter()) as console:
                assert isinstance(console, LineConsole if plain or not terminal else PromptConsole)
                if isinstance(console, LineConsole):
                    os.write(controller, b"\x04")
                    assert await asyncio.wait_for(console.events.get(), PATIENCE) == "end"
    os.close(controller)


async def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of any portions become events, the end too; prompts go to stderr, answers to stdout."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        console = LineConsole(styled(terminal=False))
        console.start()
        os.write(writing, b"on")
        os.write(writing, b"e\r\ntwo\nthr")
        os.close(writing)
        events = [await asyncio.wait_for(console.events.get(), PATIENCE) for _ in range(4)]
        assert events == [Submit("one"), Submit("two"), Submit("thr"), "end"]
        console.put([("answer", "1")])
        console.say("note")
        console.prompt("2> ")
        console.echo("one")
        assert not console.clear_line()
        await console.stop()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("answer", "> note\n2> ")
    assert console.columns is None
