"""The console of a conversation: a prompt_toolkit prompt below growing answers, or plain lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from lmtool.core.errors import UsageError
from lmtool.terminal.chat.editor import edited_text, editor_command
from lmtool.terminal.chat.graphemes import PlainEmoji, length_after, length_before

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.layout.screen import Char
    from prompt_toolkit.output import Output as TerminalOutput

    from lmtool.terminal.chat.interleave import Piece
    from lmtool.terminal.chat.render import StyledOutput

LEAVES = "Ctrl-C again or Ctrl-D leaves"
"""Said where Ctrl-C had nothing to end."""
MIN_COLUMNS = 20
"""A narrower terminal is treated as having this many columns."""
_COLOR_DEPTHS = {"256": ColorDepth.DEPTH_8_BIT, "16": ColorDepth.DEPTH_4_BIT}


@dataclass(frozen=True, slots=True)
class Submit:
    """A line was entered."""

    text: str


Event: TypeAlias = Submit | Literal["interrupt", "end"]
"""A line; Ctrl-C; Ctrl-D on an empty line, or the end of stdin."""


@asynccontextmanager
async def open_console(
    styled: StyledOutput, completer: Completer, history: History | None = None
) -> AsyncIterator[Console]:
    """Read what the user types until the block ends: on a terminal that can move its cursor, else by plain lines.

    history: earlier lines for the cursor keys and the search; None: those of this session alone.
    """
    capable = styled.out.terminal and os.environ.get("TERM", "") not in {"", "dumb"}
    console: Console
    if capable and os.name == "posix":
        output = Vt100_Output.from_pty(sys.stdout, os.environ["TERM"])
        # Cursor position reports would hold back each line by a round trip, and arrive as keys after the end.
        output.enable_cpr = False
        console = PromptConsole(styled, completer, history=history, output=output)
    else:
        console = LineConsole(styled)
    console.start()
    try:
        yield console
    finally:
        await console.stop()


class PromptConsole:
    """A prompt at the bottom of a terminal. Full lines go above it; an unfinished one is drawn with the prompt."""

    def __init__(
        self,
        styled: StyledOutput,
        completer: Completer | None = None,
        *,
        history: History | None = None,
        input: Input | None = None,  # noqa: A002 - as prompt_toolkit names it
        output: TerminalOutput | None = None,
    ) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._styled = styled
        self._prompt = "> "
        self._unwritten = ""
        """What is not yet above the prompt; behind its last line feed, the unfinished line."""
        self._editing = False
        """True if the terminal is an editor's."""
        self._editor: asyncio.Task[None] | None = None
        self._session: PromptSession[str] = PromptSession(
            self._message,
            completer=completer,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            color_depth=_COLOR_DEPTHS.get(styled.depth, ColorDepth.DEPTH_1_BIT),
            key_bindings=self._keys(),
            enable_suspend=True,
            enable_history_search=True,
            history=history,
            erase_when_done=True,
            input_processors=[PlainEmoji()],
            input=input,
            output=output,
        )
        self._session.default_buffer.accept_handler = self._accept
        self._session.app._on_resize = self._on_resize  # type: ignore[method-assign] # noqa: SLF001 - there is no event

    @property
    def columns(self) -> int:
        """Width of the terminal."""
        return max(MIN_COLUMNS, self._session.output.get_size().columns)

    def start(self) -> None:
        """Show the prompt; needs a running event loop."""
        self._running = asyncio.ensure_future(self._run())

    def prompt(self, text: str) -> None:
        """Change what stands in front of the line being typed."""
        self._prompt = text
        self._session.app.invalidate()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Show part of an answer above the prompt."""
        self._unwritten += "".join(self._styled.styled(*piece) for piece in pieces)
        if "\n" in self._unwritten and not self._editing:
            self._write_lines()
        self._session.app.invalidate()

    def say(self, text: str, style: str = "2") -> None:
        """Show a note above the prompt, wrapped between words; only at the beginning of a line."""
        lines = (textwrap.fill(line, self.columns - 1, subsequent_indent="  ") for line in text.split("\n"))
        self.put([("\n".join(lines) + "\n", style)])

    def echo(self, text: str) -> None:
        """Keep an entered line above the prompt."""
        self.put([(f"{text}\n", "1")])

    def clear_line(self) -> bool:
        """Discard the line being typed. Returns whether there was any text."""
        typed = bool(self._session.default_buffer.text)
        self._session.default_buffer.reset()
        return typed

    async def edit(self, text: str) -> str | None:
        """Let the user change a text in $VISUAL or $EDITOR; None where the editor failed. Raises `UsageError`."""
        command = editor_command()
        self._editing = True
        try:
            return await run_in_terminal(partial(edited_text, command, text), in_executor=True)
        finally:
            self._editing = False
            if "\n" in self._unwritten:
                self._write_lines()

    async def _edit_line(self) -> None:
        buffer = self._session.default_buffer
        try:
            text = await self.edit(buffer.text)
        except UsageError as error:
            self.say("\n".join([f"error: {error.message}", *(f"  {hint}" for hint in error.hints)]), "31")
            return
        if text is not None:
            buffer.document = Document(text.rstrip("\n"))

    async def stop(self) -> None:
        """Remove the prompt and restore the terminal's modes; an unfinished line is kept."""
        if self._session.app.is_running:
            self._session.app.exit(exception=EOFError)
        else:
            self._running.cancel()  # not begun, or done
        await asyncio.wait({self._running})
        if self._unwritten:
            self._unwritten += "\n"
            self._write_lines()
        if not self._running.cancelled():
            self._running.result()  # an error of the terminal

    async def _run(self) -> None:
        try:
            with suppress(EOFError):
                await self._session.prompt_async()
        finally:
            self.events.put_nowait("end")

    def _message(self) -> ANSI:
        line = self._unwritten.rpartition("\n")[2]
        return ANSI(f"{line}\n{self._prompt}" if line else self._prompt)

    def _write_lines(self) -> None:
        # Not by run_in_terminal: it gives the terminal its own line editing and echo back meanwhile, and a key
        # typed in that moment is echoed, or its escape sequence read in two parts.
        if self._session.app.is_running:
            self._session.app.renderer.erase()
        lines, line_feed, self._unwritten = self._unwritten.rpartition("\n")
        self._session.output.write_raw(lines + line_feed)
        self._session.output.flush()

    def _on_resize(self) -> None:
        """Draw anew at the cursor's line, which has moved down where the terminal broke long lines anew."""
        app = self._session.app
        screen = app.renderer.last_rendered_screen
        if screen is not None and terminal_reflows():
            cursor, columns = screen.get_cursor_position(app.layout.current_window), app.output.get_size().columns
            ends = [_width(screen.data_buffer[y]) for y in range(cursor.y)]
            app.output.cursor_up(sum(max(0, end - 1) // columns for end in ends) + cursor.x // columns)
        Application._on_resize(app)  # noqa: SLF001 - as above

    def _accept(self, buffer: Buffer) -> bool:
        self.events.put_nowait(Submit(buffer.text.rstrip("\n")))  # a pasted text often ends in a line feed
        # Else the history is read when the prompt is drawn again, and a cursor key before that finds none.
        asyncio.get_running_loop().call_soon(buffer.load_history_if_not_yet_loaded)
        return False  # do not keep the text

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _interrupt(_event: KeyPressEvent) -> None:
            if not self._editing:  # else the editor has it
                self.events.put_nowait("interrupt")

        @keys.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("enter", filter=Condition(self._behind_backslash))
        def _continued_line(event: KeyPressEvent) -> None:
            event.current_buffer.delete_before_cursor()
            event.current_buffer.newline(copy_margin=False)

        @keys.add("left")
        @keys.add("c-b")
        def _left(event: KeyPressEvent) -> None:
            event.current_buffer.cursor_position -= length_before(event.current_buffer.document)

        @keys.add("right")
        @keys.add("c-f")
        def _right(event: KeyPressEvent) -> None:
            event.current_buffer.cursor_position += length_after(event.current_buffer.document)

        @keys.add("backspace")
        def _delete_before(event: KeyPressEvent) -> None:
            event.current_buffer.delete_before_cursor(length_before(event.current_buffer.document))

        @keys.add("delete")
        def _delete(event: KeyPressEvent) -> None:
            event.current_buffer.delete(length_after(event.current_buffer.document))

        @keys.add("c-x", "c-e")
        def _open_editor(_event: KeyPressEvent) -> None:
            self._editor = asyncio.ensure_future(self._edit_line())

        return keys

    def _behind_backslash(self) -> bool:
        document = self._session.default_buffer.document
        return document.text_before_cursor.endswith("\\") and not document.text_after_cursor


def terminal_reflows() -> bool:
    """True if the terminal breaks lines anew when it gets narrower; xterm, rxvt and screen cut them."""
    cuts = "XTERM_VERSION" in os.environ or "STY" in os.environ or os.environ.get("TERM", "").startswith("rxvt")
    return "TMUX" in os.environ or not cuts


def _width(row: Mapping[int, Char]) -> int:
    """Columns of a drawn row up to its last sign."""
    return max((x + char.width for x, char in row.items() if char.char != " "), default=0)


class LineConsole:
    """Lines in, lines out: for output to a file, and terminals that cannot move their cursor."""

    columns = None
    """Lines are not wrapped."""

    def __init__(self, styled: StyledOutput) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._styled = styled

    def start(self) -> None:
        """Read lines in a thread."""
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt in the loop instead
            loop.add_signal_handler(signal.SIGINT, self.events.put_nowait, "interrupt")
        reader = threading.Thread(target=_read_lines, args=(loop, self.events.put_nowait), daemon=True)
        reader.start()
        self.prompt("> ")

    def prompt(self, text: str) -> None:
        """Write the prompt to stderr."""
        sys.stderr.write(text)
        sys.stderr.flush()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Write part of an answer."""
        self._styled.write(pieces)

    def say(self, text: str, style: str = "2") -> None:
        """Write a note to stderr."""
        for line in text.split("\n"):
            self._styled.out.note(line, style)

    def echo(self, text: str) -> None:
        """Write nothing: the terminal has echoed the line."""

    def clear_line(self) -> bool:
        """Return False: the terminal driver has the line being typed."""
        return False

    async def edit(self, text: str) -> str | None:  # noqa: ARG002 - as of a prompt
        """Raise `UsageError`: the lines that come are read already."""
        raise UsageError("an editor needs a terminal that can move its cursor", "type the prompt anew")

    async def stop(self) -> None:
        """Restore the handling of SIGINT."""
        with suppress(NotImplementedError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


Console: TypeAlias = PromptConsole | LineConsole


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
