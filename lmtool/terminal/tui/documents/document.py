"""Content of a pane: lines of runs, made on demand; and lists of lines with a cursor. Heights are in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.runs import Run, split, visible, width

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View


class Document:
    """Base of the content of a pane, without a cursor."""

    heads = 0
    """Number of heading lines that do not scroll."""
    rows = 2
    """Rows of its pane, set by the pane."""
    chosen: int | None = None
    """Target under the document's own cursor."""
    _lines: list[Line]
    """Lines of the latest `height`, in documents that make all of them at once."""

    def height(self, columns: int) -> int:
        """Number of lines now. `line` is called after it, with the same columns."""
        raise NotImplementedError

    def line(self, y: int, columns: int) -> Line:  # noqa: ARG002 - for documents that make lines one by one
        """Line `y`, in at most this many columns; empty after the last one."""
        return self._lines[y] if y < len(self._lines) else []

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - for documents that break lines
        """Line that must be visible: the cursor's, or the last one; None for any."""
        return None

    def click(self, target: int) -> None:
        """Handle a click on a run with this target."""

    def move(self, rows: int) -> None:
        """Move the cursor down."""


class ViewDocument(Document):
    """Base of documents drawn from a view; targets are rows of tokens."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def click(self, target: int) -> None:
        """Put the cursor on this token."""
        self._view.choose_token(target)


class ListDocument(Document):
    """A list of lines; with a cursor sign, lines with a target can be chosen."""

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
        """One line."""
        self.height(columns)
        return self._broken[y][1] if y < len(self._broken) else []

    def anchor(self, columns: int) -> int | None:
        """The cursor's line; None without a cursor."""
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
    """A document of a text, with control characters made visible."""
    return ListDocument([[Run(visible(line))] for line in text.split("\n")])


def broken(line: Line, columns: int) -> list[Line]:
    """A line broken into lines of at most this many columns, between words if possible."""
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
