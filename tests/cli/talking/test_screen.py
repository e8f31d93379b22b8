"""Text above a row for typing, on a terminal of our own that understands what `Screen` sends."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lmtool.cli.talking.screen import Screen

_STEP = re.compile(r"\x1b\[(\d*)([ACKJH])|([^\x1b])")


class Terminal:
    """Rows of characters, as a terminal would show them after what was written; it never scrolls."""

    def __init__(self) -> None:
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        """Follow the text and its control sequences."""
        for match in _STEP.finditer(text):
            if match[3]:
                self._character(match[3])
            else:
                self._control(match[2], int(match[1] or 1))

    def _character(self, character: str) -> None:
        if character == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif character == "\r":
            self.column = 0
        else:
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _control(self, name: str, count: int) -> None:
        if name == "A":
            assert self.row >= count, "the cursor left the screen"
            self.row -= count
        elif name == "C":
            self.column += count
        elif name == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif name == "J":
            self.rows = [""] * len(self.rows)
        else:
            self.row = self.column = 0


def screen_on(terminal: Terminal) -> Screen:
    """Make a screen that writes plain text to the terminal."""
    return Screen(terminal.write, lambda text, style: text)


def test_text_grows_above_the_row() -> None:
    """An unfinished line goes on where it was, the row stays below it, the cursor stays in the row."""
    terminal = Terminal()
    screen = screen_on(terminal)
    screen.show("> Hi", 3)
    screen.put([("one", ""), (" two", "1")])
    assert terminal.rows == ["one two", "> Hi"]
    assert (terminal.row, terminal.column) == (1, 3)
    screen.put([(" three\nfour", "")])
    assert terminal.rows == ["one two three", "four", "> Hi"]
    screen.show("> Hi!", 5)
    screen.put([("\n", "")])
    assert terminal.rows == ["one two three", "four", "> Hi!"]
    screen.leave()
    assert terminal.rows == ["one two three", "four", ""]
    assert terminal.column == 0


def test_fresh_and_clear() -> None:
    """After a change of size text goes on below; clearing leaves the row alone."""
    terminal = Terminal()
    screen = screen_on(terminal)
    screen.show("> ", 2)
    screen.put([("half", "")])
    screen.fresh()
    screen.put([("new\n", "")])
    assert terminal.rows == ["half", "new", "> "]
    screen.clear()
    assert terminal.rows == ["> ", "", ""]


@given(st.lists(st.one_of(st.text(alphabet="ab\n", max_size=8), st.integers(0, 5)), max_size=20))
def test_what_is_put_is_seen(steps: list[str | int]) -> None:
    """Whatever the portions and however often the row changes, the text above it is the text put."""
    terminal = Terminal()
    screen = screen_on(terminal)
    screen.show(">", 1)
    text = ""
    for step in steps:
        if isinstance(step, int):
            screen.show(">" + "x" * step, step)
        else:
            screen.put([(step, "")])
            text += step
    lines = text.split("\n")
    above = lines[:-1] if not lines[-1] else lines
    assert terminal.rows[:-1] == above
    assert terminal.rows[-1].startswith(">")
