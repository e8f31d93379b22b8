"""Relations between streams: two side by side, shared prompt prefixes, the tree of branches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.core.logprobs.numbers import format_probability
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.terminal.tui.alignment import compare
from lmtool.terminal.tui.documents.document import Document, broken
from lmtool.terminal.tui.documents.text import OWN_STYLE, TextDocument
from lmtool.terminal.tui.runs import Run, cut, flow, length, pad, visible, width
from lmtool.trace.answers import Answers
from lmtool.trace.events import Frame
from lmtool.trace.prefix_sharing import PrefixSharing, SharedPrefix, sentences
from lmtool.trace.stream_events import RequestStarted, stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.alignment import Comparison, Side
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

LONGEST = 24
"""Cells for a differing token: over HTTP a whole answer may be one piece of text."""
SPARK = 32
"""Divergences that are drawn, the last ones."""


class ComparisonDocument(Document):
    """Verdict, then both texts: equal tokens are dim, different ones coloured."""

    def __init__(self, a: Side, b: Side, glyphs: Glyphs) -> None:
        self._sides = (a, b)
        self._glyphs = glyphs
        self.result: Comparison = compare(a, b)
        own = self.result.alignment.own
        self._texts = tuple(TextDocument(s.view, glyphs, alone=False, own=t) for s, t in zip((a, b), own, strict=True))
        self._verdict = self._phrases()
        """Phrases of the verdict, by paragraph."""
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
        """Line of the first difference; the first line if there is none."""
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
        """One line of both sides."""
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
        """The first differing token of each side; one in a prompt with the probability from the other side."""
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
    """Bits per character of a scored text, which can be compared between tokenizers."""
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


MOST_REQUESTS = 1000
"""Requests read for one list: the latest ones up to the current stream."""


def prefix_lines(view: View) -> list[Line]:
    """Lines for each request up to the moment; targets are streams. Raises `FileError`."""
    listed = [stream for stream in view.streams() if stream.has_request and not stream.choice and stream.nodes is None]
    here = next((i for i, stream in enumerate(listed) if stream.index == view.stream), len(listed) - 1)
    first = max(0, here + 1 - MOST_REQUESTS)
    latest = listed[first : first + MOST_REQUESTS]
    lines: list[Line] = [
        [Run("what prompts have in common, and why the rest was computed: oldest first", "dim"), Run("")]
    ]
    if first:
        lines.append([Run(f"the {first} requests before these were not read", "dim")])
    for shared, stream in _shared(view, latest):
        words, *more = sentences(shared, view.state.texts.meaning)
        label = Run(pad(visible(stream.label), 7), f"stream{stream.index % len(STREAM_COLORS)}", stream.index)
        lines.append([label, Run(visible(words), "cursor" if stream.index == view.stream else "", stream.index)])
        lines += [[Run(f"       {visible(line)}", "dim")] for line in more]
    return lines


def _shared(view: View, streams: Sequence[Stream]) -> list[tuple[SharedPrefix, Stream]]:
    """Prefix that each request shares with earlier ones, read from its frame."""
    sharing = PrefixSharing()
    prefixes: list[tuple[SharedPrefix, Stream]] = []
    for stream in streams:
        steps = Answers(stream_of).follow(view.lines.whole(stream.frame))
        started = next((step for step in steps if isinstance(step, RequestStarted)), None)
        if started is None:
            continue
        started.label = stream.label
        shared = sharing.add(started)
        shared.usage = stream.usage or _recorded_usage(view, stream)
        prefixes.append((shared, stream))
    return prefixes


def _recorded_usage(view: View, stream: Stream) -> TokenUsage | None:
    """Usage that an LMTP server sent with the stream's last token."""
    if not stream.rows:
        return None
    event = view.lines.event(view.state.tokens.frames[stream.rows[-1]])
    entries = event.answer()[1] if isinstance(event, Frame) else []
    names = (f"{stream.connection}/{entry.get('stream_id')}" for entry in entries)
    counted = (entry.get("usage") for entry, name in zip(entries, names, strict=True) if name == stream.label)
    return next((TokenUsage.flat(one) for one in counted if isinstance(one, dict)), None)


@dataclass(frozen=True, slots=True)
class Branch:
    """A stream that continues another one from one of its tokens."""

    parent: str
    """Label."""
    position: int
    """Position of the parent's token that it replaces, from 0; earlier tokens are shared."""
    child: str
    text: str
    """The token that it begins with, or that is ruled out, without control characters."""
    beginning: bytes | None = None
    """Bytes between its parent's prompt and its own tokens, if its request has them as text."""


@dataclass(slots=True)
class Branches:
    """All branches started by the inspector, in order."""

    branches: list[Branch] = field(default_factory=list)
    scores: dict[str, str] = field(default_factory=dict)
    """Label of a score, to the label of the scored stream."""

    def add(self, parent: str, position: int, child: str, text: str, beginning: bytes | None = None) -> None:
        """Add a branch."""
        self.branches.append(Branch(parent, position, child, text, beginning))

    def beginning(self, label: str) -> tuple[str, bytes]:
        """The stream whose prompt a chain of branches by text continues, and the text after that prompt."""
        branch = next((b for b in self.branches if b.child == label and b.beginning is not None), None)
        if branch is None or branch.beginning is None:
            return label, b""
        origin, before = self.beginning(branch.parent)
        return origin, before + branch.beginning

    def origin(self, label: str) -> str | None:
        """Label of the parent of a branch, or of the scored stream; None for other streams."""
        parents = (branch.parent for branch in self.branches if branch.child == label)
        return next(parents, self.scores.get(label))

    def root(self, label: str) -> str:
        """Label of the stream at the root of a chain of branches."""
        parents = {branch.child: branch.parent for branch in self.branches}
        while label in parents:
            label = parents[label]
        return label

    def lines(self, view: View, label: str, columns: int, *, ascii_only: bool = False) -> list[Line]:
        """The tree of a stream's branches: text and perplexity of each, indented by generation."""
        signs = ("`-", "~") if ascii_only else ("└─", "…")
        return self._lines(view, self.root(label), "", 0, columns, signs)

    def _lines(self, view: View, label: str, lead: str, depth: int, columns: int, signs: tuple[str, str]) -> list[Line]:
        stream = view.state.find(label)
        if stream is None or depth > 50:
            return []
        count = stream.count(view.token_count)
        ppl = stream.perplexity(count)
        mode = "" if stream.logprobs_mode in (None, "raw") else f" {stream.logprobs_mode}"
        figure = "" if ppl is None else f"  ppl {ppl:.1f}{mode}"
        here = "cursor" if stream.index == view.stream else ""
        text = visible(view.state.text(stream, min(count, 200)))
        room = max(8, columns - width(lead) - width(label) - len(figure) - 6)
        excerpt = cut(text, room, signs[1])
        name = Run(f"{visible(label)} ", "accent", stream.index)
        lines: list[Line] = [[Run(lead, "dim"), name, Run(excerpt, here, stream.index), Run(figure, "dim")]]
        children = sorted((b for b in self.branches if b.parent == label), key=lambda b: b.position)
        for branch in children:
            indent = "   " * depth
            sign = f"{indent}{signs[0]} #{branch.position} {branch.text} "
            lines += self._lines(view, branch.child, sign, depth + 1, columns, signs)
        return lines
