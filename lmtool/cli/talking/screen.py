"""Text that grows above a row where the user types: what to send to the terminal for each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmtool.cli.talking.cells import width
from lmtool.cli.talking.lanes import Piece


@dataclass(slots=True)
class Screen:
    """Keeps one row at the bottom for typing; text goes above it, an unfinished line too.

    Lines of text must not be wider than the terminal.
    """

    write: Callable[[str], None]
    """Sends to the terminal as it is, flushed."""
    styled: Callable[[str, str], str]
    """Makes a model's text safe for a terminal and gives it a style."""
    column: int = 0
    """Columns used on the unfinished line above the row."""
    _row: str = ""
    _cursor: int = 0

    def show(self, row: str, cursor: int) -> None:
        """Draw the row, with the cursor in this column."""
        self._row, self._cursor = row, cursor
        self.write(f"\r\x1b[K{self._typed()}")

    def put(self, pieces: Sequence[Piece]) -> None:
        """Write text above the row."""
        if not pieces:
            return
        back = f"\x1b[A\r{_right(self.column)}" if self.column else ""
        plain = "".join(text for text, _ in pieces)
        tail = plain[plain.rfind("\n") + 1 :]
        self.column = width(tail) + (0 if "\n" in plain else self.column)
        below = "\n" if self.column else ""
        text = "".join(self.styled(*piece) for piece in pieces)
        self.write(f"\r\x1b[K{back}{text}{below}{self._typed()}")

    def fresh(self) -> None:
        """Go on after the size has changed: the unfinished line, if any, counts as finished."""
        self.column = 0
        self.show(self._row, self._cursor)

    def clear(self) -> None:
        """Empty the whole screen but for the row."""
        self.column = 0
        self.write(f"\x1b[2J\x1b[H{self._typed()}")

    def leave(self) -> None:
        """Take the row away; the cursor is then at the beginning of an empty line."""
        self.write("\r\x1b[K")

    def _typed(self) -> str:
        return f"{self._row}\r{_right(self._cursor)}"


def _right(columns: int) -> str:
    return f"\x1b[{columns}C" if columns else ""
