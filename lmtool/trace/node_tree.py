"""The nodes of an Evergreen action as a trace has them: trees of leaves, each by its type, size and beginning."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREVIEW = 80
"""Characters of a leaf's text that are kept."""
MAX_LINES = 200
"""Of a tree that is shown: nodes may stand in it many times."""


@dataclass(slots=True, eq=False)
class TraceNode:
    """A node as far as the trace has it."""

    id: str
    mimetype: str = ""
    role: str = ""
    size: int = 0
    """Bytes of its own payload."""
    text: str = ""
    """The beginning of it, of a text."""
    children: dict[int, list[TraceNode]] = field(default_factory=dict)
    """By seq of the fragment that names them."""
    final: bool = False

    def summary(self) -> str:
        """What it is, in a few words."""
        if self.children:
            return f"{sum(map(len, self.children.values()))} children"
        kind = f"{self.mimetype} {self.role}".strip()
        shown = repr(self.text) if self.text else f"{self.size} bytes"
        return " ".join(filter(None, (kind, shown, "" if self.final else "…")))

    def take_chunk(self, chunk: object) -> bytes:
        """Note what a piece of a leaf says of it; the piece's bytes."""
        if not isinstance(chunk, dict):
            return b""
        metadata = chunk.get("metadata")
        if isinstance(metadata, dict) and not self.mimetype:
            self.mimetype, self.role = str(metadata.get("mimetype", "")), str(metadata.get("role", ""))
        told = chunk.get("data")
        try:
            data = base64.b64decode(told) if isinstance(told, str) else b""  # an object where it was redacted
        except ValueError:
            return b""  # a trace that others wrote
        self.size += len(data)
        if self.mimetype.startswith("text/") and len(self.text) < PREVIEW:
            self.text = (self.text + data.decode(errors="replace"))[:PREVIEW]
        elif isinstance(chunk.get("ref"), str):
            self.text = str(chunk["ref"])[:PREVIEW]
        return data


@dataclass(frozen=True, slots=True)
class ActionNodes:
    """The nodes of an action: its inputs and outputs by name, and what is below them."""

    inputs: Mapping[str, TraceNode]
    outputs: Mapping[str, TraceNode]

    def prompt_end(self) -> str:
        """The beginning of the last leaf of the inputs: of a conversation, what was asked now. Empty for no text."""
        node = [*self.inputs.values()][-1] if self.inputs else None
        for _ in range(MAX_LINES):
            below = [] if node is None or not node.children else node.children[max(node.children)]
            if not below:
                break
            node = below[-1]
        return "" if node is None else node.text

    def lines(self) -> Iterator[tuple[int, str]]:
        """Depth and words of each line of the tree, at most `MAX_LINES`."""
        waiting = [(0, f"{name} ▸", node) for name, node in reversed([*self.inputs.items()])]
        waiting = [(0, f"▸ {name}", node) for name, node in reversed([*self.outputs.items()])] + waiting
        for _ in range(MAX_LINES):
            if not waiting:
                return
            depth, name, node = waiting.pop()
            yield depth, f"{name} {node.summary()}".strip()
            below = [child for _, children in sorted(node.children.items()) for child in children]
            waiting += [(depth + 1, "", child) for child in reversed(below[:MAX_LINES])]
