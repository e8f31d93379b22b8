"""Which stream was begun from which token of another, as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.tui.runs import Run, cut, visible, width

if TYPE_CHECKING:
    from lmtool.tui.runs import Line
    from lmtool.tui.view import View


@dataclass(frozen=True, slots=True)
class Branch:
    """A stream that goes on from another one."""

    parent: str
    """Label."""
    position: int
    """Place of the parent's token that it changes, from 0: the parent's tokens before are its own as well."""
    child: str
    text: str
    """The token that it begins with instead, or what was ruled out; harmless."""


@dataclass(slots=True)
class Branches:
    """All branches made here, in order."""

    made: list[Branch] = field(default_factory=list)
    scores: dict[str, str] = field(default_factory=dict)
    """Streams that score another one, and which: labels."""

    def add(self, parent: str, position: int, child: str, text: str) -> None:
        """A branch was begun."""
        self.made.append(Branch(parent, position, child, text))

    def origin(self, label: str) -> str | None:
        """The stream that a branch goes on from, or that is scored; None for what is neither."""
        parents = (branch.parent for branch in self.made if branch.child == label)
        return next(parents, self.scores.get(label))

    def root(self, label: str) -> str:
        """The stream that a chain of branches began with."""
        parents = {branch.child: branch.parent for branch in self.made}
        while label in parents:
            label = parents[label]
        return label

    def lines(self, view: View, label: str, columns: int, *, ascii_only: bool = False) -> list[Line]:
        """The tree that a stream is part of: indented by generation, text and perplexity of each."""
        signs = ("`-", "~") if ascii_only else ("└─", "…")
        return self._lines(view, self.root(label), "", 0, columns, signs)

    def _lines(self, view: View, label: str, lead: str, depth: int, columns: int, signs: tuple[str, str]) -> list[Line]:
        stream = view.state.find(label)
        if stream is None or depth > 50:
            return []
        count = stream.count(view.seen)
        ppl = stream.perplexity(count)
        mode = "" if stream.logprobs_mode in (None, "raw") else f" {stream.logprobs_mode}"
        figure = "" if ppl is None else f"  ppl {ppl:.1f}{mode}"
        here = "cursor" if stream.index == view.stream else ""
        text = visible(view.state.text(stream, min(count, 200)))
        room = max(8, columns - width(lead) - width(label) - len(figure) - 6)
        shown = cut(text, room, signs[1])
        lines: list[Line] = [
            [
                Run(lead, "dim"),
                Run(f"{visible(label)} ", "accent", stream.index),
                Run(shown, here, stream.index),
                Run(figure, "dim"),
            ]
        ]
        children = sorted((b for b in self.made if b.parent == label), key=lambda b: b.position)
        for branch in children:
            indent = "   " * depth
            sign = f"{indent}{signs[0]} #{branch.position} {branch.text} "
            lines += self._lines(view, branch.child, sign, depth + 1, columns, signs)
        return lines
