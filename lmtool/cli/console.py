"""Rich output of a command: tables and cards as wide as the terminal, aligned columns in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmtool.settings.terminal import Output

PIPE_COLUMNS = 120
"""Columns where there is no terminal."""


def print_rich(out: Output, make: Callable[[int], RenderableType]) -> None:
    """Print what `make` returns for a number of columns, those of the terminal, with colours where `out` has them."""
    from rich.console import Console

    columns = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
    console = Console(
        file=sys.stdout, width=columns, no_color=not out.color, force_terminal=out.color, highlight=False, emoji=False
    )
    console.print(make(columns))


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
