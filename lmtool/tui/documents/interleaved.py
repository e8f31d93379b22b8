"""Tokens of all streams in order of arrival, one a line."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import format_probability
from lmtool.tui import numbers
from lmtool.tui.heat import STREAM_COLORS
from lmtool.tui.runs import Run, fitted, pad, visible

if TYPE_CHECKING:
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.runs import Line
    from lmtool.tui.view import View


ROOMY = 44
"""Columns from which on each token's figure is shown beside it."""


class InterleavedDocument:
    """Time, stream, token; a frame that brought several shows its time once."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def height(self, columns: int) -> int:
        """Tokens shown; a line to say that there are none."""
        del columns
        return max(1, len(self._view.shown()))

    def anchor(self, columns: int) -> int | None:
        """The cursor's token, or the last one."""
        shown = self._view.shown()
        if self._view.row is None:
            return self.height(columns) - 1
        return min(bisect_left(shown, self._view.row), max(0, len(shown) - 1))

    def click(self, target: int) -> None:
        """Put the cursor on this token."""
        self._view.choose_token(target)

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_row(rows)

    def line(self, y: int, columns: int) -> Line:
        """One token."""
        view, glyphs = self._view, self._glyphs
        shown = view.shown()
        if y >= len(shown):
            return (
                [Run(" no token yet" if view.filter is None else " no token for this filter", "dim")] if y == 0 else []
            )
        row = shown[y]
        tokens, frames = view.state.tokens, view.state.frames
        stream = view.state.streams[tokens.streams[row]]
        frame = tokens.frames[row]
        same = y > 0 and tokens.frames[shown[y - 1]] == frame
        here = row == view.token
        time = " " * 9 if same else f"{frames.times[frame]:9.3f}"
        text = visible(view.state.token_text(row), blanks=view.invisible)
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        line: Line = [
            Run(time, "dim", row),
            Run(f" {pad(visible(stream.label), 7)} ", color, row),
            Run(f"{pad(self._value(row), 7, right=True)} " if columns >= ROOMY else "", "dim", row),
            Run(glyphs.cursor if here else glyphs.bar, "accent" if here else "dim", row),
            Run(text or " ", f"{view.style(row)} {'here' if here else ''}", row),
        ]
        return fitted(line, columns)

    def _value(self, row: int) -> str:
        view = self._view
        value = view.measure(row)
        if value is None:
            return ""
        units = {"surprisal": "b", "entropy": "b", "gap": "ms"}
        heat = view.heat
        if heat == "prob":
            return format_probability(value)
        if heat == "rank":
            return str(view.rank(row))
        return f"{numbers.figure(value)}{units.get(heat, '')}"
