"""Two streams side by side, with the place where they part in sight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.alignment import compare
from lmtool.terminal.tui.documents.document import Document
from lmtool.terminal.tui.documents.list import broken
from lmtool.terminal.tui.documents.text import OWN_STYLE, TextDocument
from lmtool.terminal.tui.runs import Run, cut, flow, length, visible, width

if TYPE_CHECKING:
    from lmtool.terminal.tui.alignment import Comparison, Side
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.styles import Glyphs

LONGEST = 24
"""Cells for what a side goes on with: over HTTP a whole answer may be one piece of text."""
SPARK = 32
"""Divergences that are drawn, the last ones."""


class ComparisonDocument(Document):
    """Verdict first, then both texts; tokens that both have are plain, from the parting on each has its colours."""

    def __init__(self, a: Side, b: Side, glyphs: Glyphs) -> None:
        self._sides = (a, b)
        self._glyphs = glyphs
        self.result: Comparison = compare(a, b)
        own = self.result.alignment.own
        self._texts = tuple(TextDocument(s.view, glyphs, alone=False, own=t) for s, t in zip((a, b), own, strict=True))
        self._verdict = self._phrases()
        """What they have in common: paragraphs of phrases."""
        self._columns = 0
        self._head: list[Line] = []
        """The verdict in these columns."""

    def height(self, columns: int) -> int:
        """Verdict, headings, and the longer text."""
        self._fit(columns)
        each = self._each(columns)
        texts = zip(self._texts, self._sides, strict=True)
        return self.heads + max(text.lines(side.stream, each) for text, side in texts)

    def anchor(self, columns: int) -> int | None:
        """The line where the streams part; the first one where they do not."""
        self._fit(columns)
        alignment = self.result.alignment
        for side, text, place in zip(self._sides, self._texts, alignment.places, strict=True):
            if alignment.parts and 0 < place < len(side.rows):
                return self.heads + text.line_at(side.stream, place, self._each(columns))
        return 0

    def _fit(self, columns: int) -> None:
        """Lay the verdict out."""
        if columns == self._columns:
            return
        self._columns, room = columns, max(1, columns - 1)
        parts = ([piece for phrase in part for piece in _wrapped(phrase, room)] for part in self._verdict)
        self._head = [[Run(" "), *line] for part in parts for line in flow(part, room)]
        self.heads = len(self._head) + 1

    def _each(self, columns: int) -> int:
        return max(4, columns // 2 - 1)

    def line(self, y: int, columns: int) -> Line:
        """One line over both."""
        self._fit(columns)
        if y < len(self._head):
            return self._head[y]
        y -= len(self._head)
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
        after = parting if place >= 0 and self.result.alignment.parts else -1
        line: Line = []
        for text, style, row in self._texts[i].line_of(side.stream, y, columns):
            if (row is not None and row == parting) or style == OWN_STYLE:
                line.append(Run(f"{self._glyphs.open}{text}{self._glyphs.close}", f"{style} here", row))
            else:
                coloured = row is not None and after is not None and row > after
                line.append(Run(text, style if coloured else "dim", row))
        return line

    def _phrases(self) -> list[Line]:
        result, (a, b) = self.result, self._sides
        alignment = result.alignment
        same = f"same {_counted(alignment.same, 'token')}"
        if alignment.characters is not None:
            same = f"same {_counted(alignment.characters, 'character')}, {_counted(alignment.same, 'token')} cut alike"
        if not alignment.parts:
            left = [len(side.rows) - place for side, place in zip((a, b), alignment.places, strict=True)]
            tail = "and nothing more" if left[0] == left[1] else f"then {'A' if left[0] < left[1] else 'B'} ends"
            lines: list[Line] = [[Run(f"{same}, {tail}", "title")]]
        else:
            lines = [[Run(f"{same}, then", "title"), *self._candidates()]]
        lines += [[Run(note, "accent")] for note in result.notes]
        if a.stream.kind == b.stream.kind == "SCORE":
            lines.append([Run(" · ".join(map(_bits_each, "AB", (a, b))), "title")])
        if result.worst is not None and result.worst_at is not None:
            ours, theirs = (side.view.position(row) for side, row in zip((a, b), result.worst_at, strict=True))
            where = f"#{ours}" if ours == theirs else f"A #{ours}, B #{theirs}"
            lines.append([Run(f"their logprobs differ by at most {result.worst:.4f} nats, at {where}", "dim")])
        divergences = [value for value in result.divergences if value is not None]
        if divergences:
            top = max([*divergences, 1e-6])
            spark = "".join(
                " " if value is None else self._glyphs.spark[min(7, int(value / top * 8))]
                for value in result.divergences[-SPARK:]
            )
            most = max(divergences)  # small differences are what one looks for
            nats = numbers.figure(most) if most >= 1 else f"{most:.2g}"
            least = f"least KL of B from A by the alternatives of both: up to {nats} nats"
            lines.append([Run(least, "dim"), Run(spark, "spark")])
        return lines

    def _candidates(self) -> Line:
        """What each side goes on with; what is in its prompt has the probability that the other side gave it."""
        result, line = self.result, list[Run]()
        for i, (side, place) in enumerate(zip(self._sides, result.alignment.places, strict=True)):
            name, logprob = result.alignment.names[i], result.candidates[i]
            p = "" if logprob is None else f" {format_probability(probability(logprob))}"
            in_prompt = place < 0
            if not in_prompt:
                text = side.view.measures.quote_token(side.rows[place])
            elif isinstance(name, int):
                text = side.view.measures.quote(name)
            else:
                text = "other text"
            inside = f" (in its prompt{f';{p} in {chr(66 - i)}' if p else ''})" if in_prompt else p
            line.append(Run(f"{'AB'[i]} {cut(text, LONGEST)}{inside}"))
        if result.near_tie:
            margin = min(abs(m) for m in result.margins if m is not None)
            line.append(Run(f"near tie (Δ {margin:.3f} nats)", "accent"))
        return line


def _bits_each(name: str, side: Side) -> str:
    """How well a model foresees the text, so that models with other tokenizers can be compared: bits a character."""
    logprobs = side.view.state.tokens.logprobs
    scored = [i for i, row in enumerate(side.rows) if not math.isnan(logprobs[row])]
    characters = sum(len(side.view.state.texts.text_at(side.stream, i)) for i in scored)
    total = bits(math.fsum(logprobs[side.rows[i]] for i in scored))
    ppl = side.stream.perplexity(len(side.rows))
    each = "-" if not characters else f"{total / characters:.3f}"
    return (
        f"{name} {each} bits a character, {_counted(len(scored), 'token')}, ppl {numbers.figure(ppl) if ppl else '-'}"
    )


def _wrapped(phrase: Run, columns: int) -> list[Run]:
    """A phrase in pieces that fit, cut between words."""
    if width(phrase.text) <= columns or phrase.style == "spark":
        return [phrase]
    return [run._replace(text=run.text.rstrip()) for line in broken([phrase], columns) for run in line]


def _counted(number: int, what: str) -> str:
    return f"{numbers.count(number)} {what}{'' if number == 1 else 's'}"
