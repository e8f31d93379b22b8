"""The tree of branches: which stream was begun from which token of another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.terminal.tui.runs import Run, cut, visible, width

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.view import View


@dataclass(frozen=True, slots=True)
class Branch:
    """A stream that goes on from another one."""

    parent: str
    """Label."""
    position: int
    """Place of the parent's token that it changes, from 0: the parent's tokens before are its own as well."""
    child: str
    text: str
    """The token that it begins with instead, or the one that is ruled out; harmless."""
    beginning: bytes | None = None
    """What stands between its parent's prompt and its own tokens, where its request has that as text."""


@dataclass(slots=True)
class Branches:
    """All branches that the inspector began, in order."""

    branches: list[Branch] = field(default_factory=list)
    scores: dict[str, str] = field(default_factory=dict)
    """Label of a stream that scores another one, to the label of that one."""

    def add(self, parent: str, position: int, child: str, text: str, beginning: bytes | None = None) -> None:
        """Add a branch."""
        self.branches.append(Branch(parent, position, child, text, beginning))

    def beginning(self, label: str) -> tuple[str, bytes]:
        """The stream whose prompt a chain of branches by text goes on from, and the text behind that prompt."""
        found = next((b for b in self.branches if b.child == label and b.beginning is not None), None)
        if found is None or found.beginning is None:
            return label, b""
        origin, before = self.beginning(found.parent)
        return origin, before + found.beginning

    def origin(self, label: str) -> str | None:
        """The stream that a branch goes on from, or that is scored; None for what is neither."""
        parents = (branch.parent for branch in self.branches if branch.child == label)
        return next(parents, self.scores.get(label))

    def root(self, label: str) -> str:
        """The stream that a chain of branches began with."""
        parents = {branch.child: branch.parent for branch in self.branches}
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
        count = stream.count(view.token_count)
        ppl = stream.perplexity(count)
        mode = "" if stream.logprobs_mode in (None, "raw") else f" {stream.logprobs_mode}"
        figure = "" if ppl is None else f"  ppl {ppl:.1f}{mode}"
        here = "cursor" if stream.index == view.stream else ""
        text = visible(view.state.text(stream, min(count, 200)))
        room = max(8, columns - width(lead) - width(label) - len(figure) - 6)
        shown = cut(text, room, signs[1])
        name = Run(f"{visible(label)} ", "accent", stream.index)
        lines: list[Line] = [[Run(lead, "dim"), name, Run(shown, here, stream.index), Run(figure, "dim")]]
        children = sorted((b for b in self.branches if b.parent == label), key=lambda b: b.position)
        for branch in children:
            indent = "   " * depth
            sign = f"{indent}{signs[0]} #{branch.position} {branch.text} "
            lines += self._lines(view, branch.child, sign, depth + 1, columns, signs)
        return lines
