"""A list of lines, long ones broken; lines with a target can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.documents.document import Document
from lmtool.terminal.tui.runs import Run, split, visible, width

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line


class ListDocument(Document):
    """Shows lines; with a cursor sign, those that have a target can be walked through."""

    def __init__(self, lines: list[Line], *, cursor: str = "") -> None:
        """cursor: drawn before the chosen line."""
        self._lines = lines
        self._cursor = cursor
        self._targets = [next((run.target for run in line if run.target is not None), None) for line in lines]
        self._choices = [i for i, target in enumerate(self._targets) if target is not None]
        here = [i for i in self._choices if any("cursor" in run.style for run in lines[i])]
        self._place = self._choices.index(here[0]) if here else 0
        self._broken_for: tuple[int, int] | None = None
        self._broken: list[tuple[int, Line]] = []

    @property
    def chosen(self) -> int | None:  # type: ignore[override] # moves with the cursor
        """The target under the cursor."""
        return self._targets[self._choices[self._place]] if self._choices else None

    def height(self, columns: int) -> int:
        """Lines after breaking."""
        if self._broken_for != (columns, self._place):
            self._broken_for = (columns, self._place)
            self._broken = [(i, part) for i, line in enumerate(self._lines) for part in self._parts(i, line, columns)]
        return len(self._broken)

    def _parts(self, i: int, line: Line, columns: int) -> list[Line]:
        if not self._cursor:
            return broken(line, max(1, columns))
        here = bool(self._choices) and i == self._choices[self._place]
        lead = Run(f"{self._cursor} " if here else "  ", "accent", self._targets[i])
        return broken([lead, *line], max(1, columns))

    def line(self, y: int, columns: int) -> Line:
        """One of them."""
        self.height(columns)
        return self._broken[y][1] if y < len(self._broken) else []

    def anchor(self, columns: int) -> int | None:
        """The cursor's line, where there is a cursor."""
        self.height(columns)
        if not self._cursor or not self._choices:
            return None
        return next(y for y, (i, _) in enumerate(self._broken) if i == self._choices[self._place])

    def click(self, target: int) -> None:
        """Choose the line with this target."""
        if target in self._targets:
            self._place = self._choices.index(self._targets.index(target))

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._place = min(max(0, len(self._choices) - 1), max(0, self._place + rows))


def text_document(text: str) -> ListDocument:
    """A text from anywhere, harmless."""
    return ListDocument([[Run(visible(line))] for line in text.split("\n")])


def broken(line: Line, columns: int) -> list[Line]:
    """A line as lines of at most this many columns, words whole where that is possible."""
    parts: list[Line] = [[]]
    used = 0
    for run in line:
        text = run.text
        while used + width(text) > columns:
            fits = split(text, columns - used, at_least=0 if used else 1)[0]
            place = fits.rfind(" ") + 1 or len(fits)  # words stay whole where there is one to break at
            parts[-1].append(run._replace(text=text[:place]))
            text = text[place:]
            parts.append([])
            used = 0
        parts[-1].append(run._replace(text=text))
        used += width(text)
    return parts
