"""Two streams side by side, the place where they part in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import format_probability, probability
from lmtool.tui import numbers
from lmtool.tui.compare import compare
from lmtool.tui.documents.text import TextDocument
from lmtool.tui.runs import Run, cut, fitted, length, visible

if TYPE_CHECKING:
    from lmtool.tui.alignment import Side
    from lmtool.tui.compare import Comparison
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.runs import Line


class ComparisonDocument:
    """Verdict first, then both texts; tokens that both have are plain, from the parting on each has its colours."""

    def __init__(self, a: Side, b: Side, glyphs: Glyphs) -> None:
        self._sides = (a, b)
        self._glyphs = glyphs
        self._texts = (TextDocument(a.view, glyphs, cursor=False), TextDocument(b.view, glyphs, cursor=False))
        self.result: Comparison = compare(a, b)
        self._verdict = self._told()
        """A sentence or two on what they have in common."""

    def height(self, columns: int) -> int:
        """Verdict, headings, and the longer text."""
        each = self._each(columns)
        texts = zip(self._texts, self._sides, strict=True)
        return self.heads + max(text.lines(side.stream, each) for text, side in texts)

    @property
    def heads(self) -> int:
        """Lines at the top that stay in sight: the verdict and whose texts these are."""
        return len(self._verdict) + 1

    def anchor(self, columns: int) -> int | None:
        """The line where the streams part; the first one where they do not."""
        found = self.result.alignment
        for side, text, place in zip(self._sides, self._texts, found.places, strict=True):
            if found.parted and 0 < place < len(side.rows):
                return self.heads + text.line_at(side.stream, place, self._each(columns))
        return 0

    def click(self, target: int) -> None:
        """Nothing to choose."""

    def move(self, rows: int) -> None:
        """Nothing to move."""

    def _each(self, columns: int) -> int:
        return max(4, columns // 2 - 1)

    def line(self, y: int, columns: int) -> Line:
        """One line over both."""
        if y < len(self._verdict):
            return fitted(self._verdict[y], columns)
        y -= len(self._verdict)
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
        rows, place = side.rows, self.result.alignment.places[i]
        parting = rows[place] if 0 <= place < len(rows) else None
        after = parting if place >= 0 else -1
        line: Line = []
        for text, style, row in self._texts[i].line_of(side.stream, y, columns):
            if row is not None and row == parting:
                line.append(Run(f"{self._glyphs.open}{text}{self._glyphs.close}", f"{style} here", row))
            else:
                line.append(Run(text, style if after is not None and row is not None and row > after else "dim", row))
        return line

    def _told(self) -> list[Line]:
        result, (a, b) = self.result, self._sides
        found = result.alignment
        same = f" same {_counted(found.same, 'token')}"
        if found.characters is not None:
            same = f" same {_counted(found.characters, 'character')}, {_counted(found.same, 'token')} cut alike"
        if not found.parted:
            left = [len(side.rows) - place for side, place in zip((a, b), found.places, strict=True)]
            tail = "and nothing more" if left[0] == left[1] else f"then {'A' if left[0] < left[1] else 'B'} ends"
            lines: list[Line] = [[Run(f"{same}, {tail}", "title")]]
        else:
            lines = [[Run(f"{same}, then  ", "title"), *self._candidates()]]
        lines += [[Run(f" {note}", "accent")] for note in result.notes]
        if result.worst is not None and result.worst_at is not None:
            ours, theirs = (side.view.position(row) for side, row in zip((a, b), result.worst_at, strict=True))
            where = f"#{ours}" if ours == theirs else f"A #{ours}, B #{theirs}"
            lines.append(
                [Run(f" largest difference of logprobs before that: {result.worst:.4f} nats at {where}", "dim")]
            )
        known = [value for value in result.divergences if value is not None]
        if known:
            top = max([*known, 1e-6])
            spark = "".join(
                " " if value is None else self._glyphs.spark[min(7, int(value / top * 8))]
                for value in result.divergences[-60:]
            )
            told = f" KL of B from A by alternatives of both, at least; largest {_nats(max(known))} nats: "
            lines.append([Run(told, "dim"), Run(spark, "spark")])
        return lines

    def _candidates(self) -> Line:
        """What each side goes on with; what is in its prompt has the probability that the other side gave it."""
        result, line = self.result, list[Run]()
        for i, (side, place) in enumerate(zip(self._sides, result.alignment.places, strict=True)):
            name, logprob = result.alignment.names[i], result.candidates[i]
            p = "" if logprob is None else f" {format_probability(probability(logprob))}"
            given = place < 0
            if not given:
                text = side.view.measures.quote_token(side.rows[place])
            elif isinstance(name, int):
                text = side.view.measures.quote(name)
            else:
                text = "other text"
            inside = f" (in its prompt{f';{p} in {chr(66 - i)}' if p else ''})" if given else p
            line.append(Run(f"{'AB'[i]} {text}{inside}   "))
        if result.near_tie:
            margin = min(abs(m) for m in result.margins if m is not None)
            line.append(Run(f"near tie (Δ {margin:.3f} nats)", "accent"))
        return line


def _counted(number: int, what: str) -> str:
    return f"{numbers.count(number)} {what}{'' if number == 1 else 's'}"


def _nats(value: float) -> str:
    """Small differences are what one looks for."""
    return numbers.figure(value) if value >= 1 else f"{value:.2g}"
