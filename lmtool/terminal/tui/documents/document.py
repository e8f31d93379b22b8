"""What a pane shows: lines of runs, made when they are needed. Heights and lines are in terminal cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View


class Document:
    """Base of what a pane shows; nothing in it can be chosen."""

    heads = 0
    """Lines at the top that stay in sight."""
    rows = 2
    """Rows of the screen that its pane has, which sets them."""
    chosen: int | None = None
    """The target under the document's own cursor."""

    def height(self, columns: int) -> int:
        """How many lines there are now."""
        raise NotImplementedError

    def line(self, y: int, columns: int) -> Line:
        """Line `y`, in at most this many columns."""
        raise NotImplementedError

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - for documents that break lines
        """The line that must be in sight: the cursor's, or the last one; None: any."""
        return None

    def click(self, target: int) -> None:
        """A run with this target was clicked."""

    def move(self, rows: int) -> None:
        """Move the cursor down."""


class ViewDocument(Document):
    """Base of what is drawn from a view; targets are rows of tokens."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def click(self, target: int) -> None:
        """Put the cursor on this token."""
        self._view.choose_token(target)
