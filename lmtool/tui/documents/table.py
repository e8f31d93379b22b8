"""The tokens of one stream as a table with their alternatives."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import bits, format_probability, probability
from lmtool.tui import numbers
from lmtool.tui.runs import Run, fitted, pad, visible

if TYPE_CHECKING:
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.runs import Line
    from lmtool.tui.view import View


class TableDocument:
    """Number, id, token, probability, bits, rank, alternatives; one line a token, the heading first."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def _count(self) -> int:
        stream = self._view.current
        return 0 if stream is None else stream.count(self._view.seen)

    heads = 1
    """Lines at the top that stay in sight."""

    def height(self, columns: int) -> int:
        """Tokens and a heading."""
        del columns
        return 1 + self._count()

    def anchor(self, columns: int) -> int | None:
        """The cursor's token."""
        stream, row = self._view.current, self._view.token
        if stream is None or row is None or self._view.row is None:
            return self.height(columns) - 1
        return 1 + bisect_left(stream.rows, row)

    def click(self, target: int) -> None:
        """Put the cursor on this token."""
        self._view.choose_token(target)

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_token(rows)

    def line(self, y: int, columns: int) -> Line:
        """A heading or a token."""
        stream = self._view.current
        if y == 0 or stream is None:
            words = (pad("#", 5, right=True), pad("id", 7, right=True), pad("token", 14))
            return fitted([Run(f" {' '.join(words)}     p   bits rank  alternatives", "title")], columns)
        if y > self._count():
            return []
        return self._token(stream.rows[y - 1], y - 1, columns)

    def _token(self, row: int, position: int, columns: int) -> Line:
        view, glyphs = self._view, self._glyphs
        token, logprob = view.state.tokens.ids[row], view.state.tokens.logprob(row)
        here = "cursor" if row == view.token else ""
        p = "" if logprob is None else format_probability(probability(logprob))
        surprisal = "" if logprob is None else numbers.figure(bits(logprob))
        rank = view.rank(row)
        text = visible(view.state.texts.quote_row(row), blanks=view.invisible)
        lead = glyphs.cursor if here else " "
        return fitted(
            [
                Run(f"{lead}{position:5} {pad(str(token) if token >= 0 else '', 7, right=True)} ", here, row),
                Run(pad(text, 14), f"{view.style(row)} {'here' if here else ''}", row),
                Run(
                    f" {pad(p, 5, right=True)} {pad(surprisal, 6, right=True)} {pad(str(rank or ''), 4, right=True)}  ",
                    here,
                    row,
                ),
                Run(view.measures.alternatives_text(row, 12), f"dim {here}", row),
            ],
            columns,
        )
