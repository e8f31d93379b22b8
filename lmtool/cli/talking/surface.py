"""Where a conversation takes place: a terminal with a row for typing, or plain lines where there is none."""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lmtool.cli.talking.lanes import Piece
from lmtool.cli.talking.lineedit import Event, LineEditor, Submit
from lmtool.cli.talking.render import Ink
from lmtool.cli.talking.screen import Screen

SMALLEST = 20
"""Columns below which a terminal is treated as having so many."""


class Surface(Protocol):
    """Takes what the user types as events, and shows text."""

    events: asyncio.Queue[Event]

    @property
    def columns(self) -> int | None:
        """Width that lines must not exceed; None where it does not matter."""

    def start(self) -> None:
        """Begin to read; needs a running event loop."""

    def prompt(self, text: str) -> None:
        """Change what stands in front of the line being typed."""

    def put(self, pieces: Sequence[Piece]) -> None:
        """Show part of an answer."""

    def say(self, text: str, style: str = "2") -> None:
        """Show lines of our own; call it at the beginning of a line only."""

    def echo(self, text: str) -> None:
        """Show the line that was typed, where the terminal has not already."""

    def clear_line(self) -> bool:
        """Throw away what is being typed; whether there was anything."""

    def stop(self) -> None:
        """Leave everything as it was found."""


def surface(ink: Ink) -> Surface:
    """Return a terminal where stdin and stdout are one that can move its cursor, else plain lines."""
    able = ink.out.terminal and os.environ.get("TERM", "") not in {"", "dumb"}
    if able:
        with suppress(ImportError):  # no termios on Windows
            return TerminalSurface(ink)
    return PlainSurface(ink)


class TerminalSurface:
    """A row for typing at the bottom; answers grow above it."""

    def __init__(self, ink: Ink) -> None:
        import termios

        self._termios = termios
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._editor = LineEditor()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt = "> "
        self._screen = Screen(_write, ink.styled)
        self._descriptor = sys.stdin.fileno()
        self._found: list[Any] = []

    @property
    def columns(self) -> int:
        """Width of the terminal."""
        return max(SMALLEST, shutil.get_terminal_size().columns)

    def start(self) -> None:
        """Take keys one by one, unechoed; a paste comes marked as one."""
        loop = asyncio.get_running_loop()
        self._found = self._termios.tcgetattr(self._descriptor)
        self._raw()
        loop.add_reader(self._descriptor, self._read)
        loop.add_signal_handler(signal.SIGINT, self.events.put_nowait, "interrupt")
        loop.add_signal_handler(signal.SIGWINCH, self._screen.fresh)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        self._show()

    def prompt(self, text: str) -> None:
        """Change what stands in front of the line being typed."""
        self._prompt = text
        self._show()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Show part of an answer above the row."""
        self._screen.put(pieces)

    def say(self, text: str, style: str = "2") -> None:
        """Show lines above the row, broken between words."""
        lines = (textwrap.fill(line, self.columns - 1, subsequent_indent="  ") for line in text.split("\n"))
        self._screen.put([("\n".join(lines) + "\n", style)])

    def echo(self, text: str) -> None:
        """Keep the line that was typed above the row."""
        self._screen.put([(f"{text}\n", "1")])

    def clear_line(self) -> bool:
        """Throw away what is being typed; whether there was anything."""
        had = bool(self._editor.text)
        self._editor.clear()
        self._show()
        return had

    def stop(self) -> None:
        """Give the terminal back as it was."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        for number in (signal.SIGINT, signal.SIGWINCH, signal.SIGCONT):
            loop.remove_signal_handler(number)
        self._screen.leave()
        _write("\x1b[?2004l")
        self._termios.tcsetattr(self._descriptor, self._termios.TCSADRAIN, self._found)

    def _raw(self) -> None:
        """Switch off line editing and echo by the terminal driver; Ctrl-C and Ctrl-Z stay signals."""
        mode = self._termios.tcgetattr(self._descriptor)
        mode[0] &= ~(self._termios.ICRNL | self._termios.INLCR)
        mode[3] &= ~(self._termios.ICANON | self._termios.ECHO | self._termios.IEXTEN)
        self._termios.tcsetattr(self._descriptor, self._termios.TCSADRAIN, mode)
        _write("\x1b[?2004h")

    def _continued(self) -> None:
        """Go on after Ctrl-Z and fg: the shell has set its own modes."""
        self._raw()
        self._screen.fresh()

    def _read(self) -> None:
        data = os.read(self._descriptor, 65536)
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self.events.put_nowait("end")
            return
        for event in self._editor.feed(self._decoder.decode(data)):
            if event == "clear":
                self._screen.clear()
            else:
                self.events.put_nowait(event)
        self._show()

    def _show(self) -> None:
        self._screen.show(*self._editor.view(self._prompt, self.columns))


class PlainSurface:
    """Lines in, lines out: for output to a file, and terminals that cannot move their cursor."""

    def __init__(self, ink: Ink) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._ink = ink
        self._prompt = "> "

    @property
    def columns(self) -> None:
        """Lines are as long as they are."""

    def start(self) -> None:
        """Read lines beside the event loop."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt in the loop instead
            loop.add_signal_handler(signal.SIGINT, self.events.put_nowait, "interrupt")
        reader = threading.Thread(target=_read_lines, args=(loop, self.events.put_nowait), daemon=True)
        reader.start()
        self._ask()

    def prompt(self, text: str) -> None:
        """Show what is asked for, on stderr."""
        self._prompt = text
        self._ask()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Write part of an answer."""
        self._ink.write(pieces)

    def say(self, text: str, style: str = "2") -> None:
        """Write lines beside the answers, on stderr."""
        for line in text.split("\n"):
            self._ink.out.note(line, style)

    def echo(self, text: str) -> None:
        """Show nothing: the terminal has echoed the line."""

    def clear_line(self) -> bool:
        """Return False: the line being typed is the terminal's."""
        return False

    def stop(self) -> None:
        """Leave the signal to whoever had it."""
        with suppress(NotImplementedError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _ask(self) -> None:
        sys.stderr.write(self._prompt)
        sys.stderr.flush()


def _read_lines(loop: asyncio.AbstractEventLoop, put: Callable[[Event], None]) -> None:
    """Read stdin to its end, past Python's own buffer: a thread that waits in it would block the exit."""
    rest = b""
    while data := os.read(sys.stdin.fileno(), 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            loop.call_soon_threadsafe(put, Submit(line.decode(errors="replace").rstrip("\r")))
    if rest:
        loop.call_soon_threadsafe(put, Submit(rest.decode(errors="replace")))
    loop.call_soon_threadsafe(put, "end")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
