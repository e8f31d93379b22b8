"""Two streams side by side, the place where they part in the middle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lmtool.tui import numbers
from lmtool.tui.compare import compare
from lmtool.tui.documents.text import TextDocument
from lmtool.tui.runs import Run, cut, fitted, length, visible

if TYPE_CHECKING:
    from lmtool.tui.compare import Comparison, Side
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.runs import Line


class ComparisonDocument:
    """Verdict first, then both texts; tokens that both have are plain, from the parting on each has its colours."""

    def __init__(self, a: Side, b: Side, glyphs: Glyphs) -> None:
        self._sides = (a, b)
        self._glyphs = glyphs
        self._texts = (TextDocument(a.view, glyphs), TextDocument(b.view, glyphs))
        self.result: Comparison = compare(a, b)

    def height(self, columns: int) -> int:
        """Verdict, headings, and the longer text."""
        each = self._each(columns)
        texts = zip(self._texts, self._sides, strict=True)
        return len(self.verdict()) + 1 + max(text.lines(side.stream, each) for text, side in texts)

    @property
    def heads(self) -> int:
        """Lines at the top that stay in sight: the verdict and whose texts these are."""
        return len(self.verdict()) + 1

    def anchor(self, columns: int) -> int | None:
        """The line where the streams part; the first one where they do not."""
        side, same = self._sides[0], self.result.same
        if not self.result.parted or not same:
            return 0
        return self.heads + self._texts[0].line_at(side.stream, same, self._each(columns))

    def click(self, target: int) -> None:
        """Nothing to choose."""

    def move(self, rows: int) -> None:
        """Nothing to move."""

    def _each(self, columns: int) -> int:
        return max(4, columns // 2 - 1)

    def line(self, y: int, columns: int) -> Line:
        """One line over both."""
        verdict = self.verdict()
        if y < len(verdict):
            return fitted(verdict[y], columns)
        y -= len(verdict)
        each = self._each(columns)
        parts = [self._heading(i, each) if y == 0 else self._part(i, y - 1, each) for i in (0, 1)]
        left = parts[0]
        return [*left, Run(" " * max(0, each - length(left))), Run(f"{self._glyphs.bar} ", "dim"), *parts[1]]

    def _heading(self, i: int, columns: int) -> Line:
        side = self._sides[i]
        name = f"{'AB'[i]} {side.stream.label} {side.stream.model or side.view.state.model or ''}"
        return [Run(cut(visible(name), columns), "title")]

    def _part(self, i: int, y: int, columns: int) -> Line:
        side = self._sides[i]
        rows, same = side.rows, self.result.same
        parting = rows[same] if same < len(rows) else None
        line: Line = []
        for text, style, row in self._texts[i].line_of(side.stream, y, columns):
            if row is not None and row == parting:
                line.append(Run(f"{self._glyphs.open}{text}{self._glyphs.close}", f"{style} here", row))
            else:
                line.append(
                    Run(text, style if parting is not None and row is not None and row > parting else "dim", row)
                )
        return line

    def verdict(self) -> list[Line]:
        """A sentence or two on what they have in common."""
        result, (a, b) = self.result, self._sides
        plural = "" if result.same == 1 else "s"
        if not result.parted:
            shorter, longer = len(a.rows), len(b.rows)
            tail = "and nothing more" if shorter == longer else f"then {'A' if shorter < longer else 'B'} ends"
            lines: list[Line] = [[Run(f" same {result.same} token{plural}, {tail}", "title")]]
        else:
            lines = [[Run(f" same {result.same} token{plural}, then  ", "title"), *self._candidates()]]
        if result.worst is not None:
            told = f" largest difference of logprobs before that: {result.worst:.4f} nats at #{result.worst_at}"
            lines.append([Run(told, "dim")])
        known = [value for value in result.divergences if value is not None]
        if known:
            top = max([*known, 1e-6])
            spark = "".join(
                " " if value is None else self._glyphs.spark[min(7, int(value / top * 8))]
                for value in result.divergences[-60:]
            )
            lines.append(
                [
                    Run(f" KL over shared alternatives, up to {numbers.figure(max(known))} nats: ", "dim"),
                    Run(spark, "spark"),
                ]
            )
        return lines

    def _candidates(self) -> Line:
        line: Line = []
        for i, side in enumerate(self._sides):
            row = side.rows[self.result.same]
            logprob = side.view.state.tokens.logprob(row)
            p = "" if logprob is None else f" {numbers.probability(math.exp(min(logprob, 0.0)))}"
            line.append(Run(f"{'AB'[i]} {visible(repr(side.view.state.token_text(row)))}{p}   "))
        if self.result.near_tie:
            margin = min(abs(m) for m in self.result.margins if m is not None)
            line.append(Run(f"near tie (Δ {margin:.3f} nats)", "accent"))
        return line
