"""Tokens, one a line: of all streams in order of arrival, or of one stream as a table of figures."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.runs import Run, fitted, pad, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line

ROOMY = 44
"""Columns from which on each token's figure is shown beside it."""
WIDE = 96
"""Columns from which on the table has entropy and margin."""
_UNITS = {"surprisal": "b", "entropy": "b", "gap": "ms"}


class InterleavedDocument(ViewDocument):
    """Time, stream, token; a frame that brought several shows its time once."""

    def height(self, columns: int) -> int:  # noqa: ARG002 - no line is broken
        """Tokens shown; a line to say that there are none."""
        return max(1, len(self._view.token_rows()))

    def anchor(self, columns: int) -> int | None:
        """The cursor's token, or the last one."""
        rows = self._view.token_rows()
        if self._view.row is None:
            return self.height(columns) - 1
        return min(bisect_left(rows, self._view.row), max(0, len(rows) - 1))

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_row(rows)

    def line(self, y: int, columns: int) -> Line:
        """One token."""
        view, glyphs = self._view, self._glyphs
        rows = view.token_rows()
        if y >= len(rows):
            nothing = " no token yet" if view.filter is None else " no token for this filter"
            return [Run(nothing, "dim")] if y == 0 else []
        row = rows[y]
        tokens, frames, stream = view.state.tokens, view.state.frames, view.state.stream_of(row)
        frame = tokens.frames[row]
        same = y > 0 and tokens.frames[rows[y - 1]] == frame
        here = row == view.token
        time = " " * 9 if same else f"{frames.times[frame]:9.3f}"
        text = visible(view.state.texts.of_row(row), blanks=view.show_blanks)
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        line: Line = [
            Run(time, "dim", row),
            Run(f" {pad(visible(stream.label), 7)} ", color, row),
            Run(f"{pad(self._figure(row), 7, right=True)} " if columns >= ROOMY else "", "dim", row),
            Run(glyphs.cursor if here else glyphs.bar, "accent" if here else "dim", row),
            Run(text or " ", f"{view.style(row)} {'here' if here else ''}", row),
        ]
        return fitted(line, columns)

    def _figure(self, row: int) -> str:
        view = self._view
        value = view.measures.heat(row, view.heat)
        if value is None:
            return ""
        if view.heat == "prob":
            return numbers.format_probability(value)
        if view.heat == "rank":
            return str(view.measures.rank(row))
        return f"{numbers.figure(value)}{_UNITS[view.heat]}"


class TableDocument(ViewDocument):
    """Number, id, token, probability, bits, rank, alternatives; one line a token, the heading first."""

    heads = 1

    def height(self, columns: int) -> int:  # noqa: ARG002 - no line is broken
        """Tokens and a heading."""
        return 1 + len(self._rows())

    def _rows(self) -> Sequence[int]:
        stream = self._view.current
        return () if stream is None else self._view.rows_of(stream)

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - no line is broken
        """The cursor's token."""
        row, rows = self._view.row, self._rows()
        return len(rows) if row is None else min(len(rows), 1 + bisect_left(rows, row))

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_token(rows)

    def line(self, y: int, columns: int) -> Line:
        """A heading or a token."""
        if y == 0:
            words = (pad("#", 5, right=True), pad("id", 7, right=True), pad("token", 14))
            more = " entropy margin" if columns >= WIDE else ""
            return fitted([Run(f" {' '.join(words)}     p   bits{more} rank  alternatives", "title")], columns)
        rows = self._rows()
        return self._token(rows[y - 1], columns) if y <= len(rows) else []

    def _token(self, row: int, columns: int) -> Line:
        view, position = self._view, self._view.position(row)
        token, logprob, rank = view.state.tokens.ids[row], view.state.tokens.logprob(row), view.measures.rank(row)
        here = "cursor" if row == view.token else ""
        p = "" if logprob is None else numbers.format_probability(probability(logprob))
        surprisal = "" if logprob is None else numbers.figure(bits(logprob))
        text = visible(view.state.texts.quote_row(row), blanks=view.show_blanks)
        lead, number = self._glyphs.cursor if here else " ", pad(str(token) if token >= 0 else "", 7, right=True)
        more = f" {self._entropy(row)} {self._margin(row)}" if columns >= WIDE else ""
        figures = f"{pad(p, 5, right=True)} {pad(surprisal, 6, right=True)}{more} {pad(str(rank or ''), 4, right=True)}"
        return fitted(
            [
                Run(f"{lead}{position:5} {number} ", here, row),
                Run(pad(text, 14), f"{view.style(row)} {'here' if here else ''}", row),
                Run(f" {figures}  ", here, row),
                Run(view.measures.alternatives_text(row, 12), f"dim {here}", row),
            ],
            columns,
        )

    def _entropy(self, row: int) -> str:
        """A number, or both bounds."""
        bounds = self._view.measures.entropy(row)
        if bounds is None:
            return " " * 7
        low, high = (numbers.figure(bound) for bound in bounds)
        return pad(low if low == high else f"{low}…{high}", 7, right=True)

    def _margin(self, row: int) -> str:
        margin = self._view.measures.margin(row)
        return pad("" if margin is None else numbers.format_probability(margin), 6, right=True)
