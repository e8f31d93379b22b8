"""What a pane needs from what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lmtool.tui.runs import Line


class Document(Protocol):
    """Lines that exist when they are asked for. Heights and lines are in terminal cells."""

    def height(self, columns: int) -> int:
        """How many lines there are now."""

    def line(self, y: int, columns: int) -> Line:
        """Line `y`, in at most this many columns."""

    def anchor(self, columns: int) -> int | None:
        """The line that must be seen: the cursor's, or the last one; None: wherever it is."""

    def click(self, target: int) -> None:
        """Somebody clicked on a run with this target."""

    def move(self, rows: int) -> None:
        """So many rows down."""
