"""Nodes and actions of a session as far as they have arrived, and the walk over a node's leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.protocol.evergreen.status import Abort, Status, quoted

if TYPE_CHECKING:
    from lmtool.core.types import Usage
    from lmtool.protocol.evergreen.messages import Action, ChunkMetadata, NodeFragment

Side: TypeAlias = Literal["here", "peer"]
"""Which end of a session produces a node or an action."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A piece of a leaf that is elsewhere."""

    uri: str


@dataclass(eq=False, slots=True)
class Node:
    """One node, as far as it has arrived."""

    id: str
    writer: Side | None = None
    """Who produces it; None as long as it is only named."""
    kind: Literal["leaf", "parent"] | None = None
    """None before the first payload or child, and for an empty node, which flattens to nothing (rule 11)."""
    metadata: ChunkMetadata | None = None
    """Of seq 0 of a leaf."""
    pieces: list[bytes | Reference] = field(default_factory=list)
    """A leaf's payloads in order, as far as there is no gap."""
    children: list[Node] = field(default_factory=list)
    """A parent's children in order, as far as there is no gap."""
    in_order: int = 0
    """Fragments without a gap from seq 0 on."""
    final_seq: int | None = None
    complete: bool = False
    """True if all of it and of everything below it has arrived."""
    size: int = 0
    """Bytes of the flattened value, once complete; of a leaf as far as it has arrived. References count nothing."""
    leaves: int = 1
    """Upper bound of the number of leaves once it is flattened; a node that is only named counts as one."""
    dropped: bool = False
    """True if it was dropped from the session; its id stays in use."""
    parents: dict[Node, int] = field(default_factory=dict)
    """Each with how often it has this node as a child."""
    readers: dict[ActionRecord, None] = field(default_factory=dict)
    """Actions that have not ended and have it as an input."""
    early: dict[int, NodeFragment] = field(default_factory=dict)
    """Fragments behind a gap, by seq."""
    highest: int = -1
    """Of all seqs so far."""
    repeated_metadata: ChunkMetadata | None = None
    """Of a payload after seq 0, to be compared once seq 0 arrives."""
    edges: int = 0
    """Children so far, behind gaps too, repetitions included."""
    open_children: int = 0
    """Distinct children that are not complete."""
    charge: int = 0
    """Bytes that it is counted as."""

    @property
    def whole(self) -> bool:
        """True if all its own fragments have arrived, whatever its children lack."""
        return self.final_seq is not None and self.in_order > self.final_seq

    def __repr__(self) -> str:
        return f"Node({self.id!r}, {self.kind}, {'complete' if self.complete else 'open'})"


@dataclass(eq=False, slots=True)
class ActionRecord:
    """An action of a session and its nodes."""

    action: Action
    caller: Side
    inputs: dict[str, Node]
    """Root nodes by parameter name."""
    outputs: dict[str, Node]
    ended: bool = False
    unsent_bytes: int = 0
    """Of its outputs, not yet handed to the transport."""
    usage: Usage | None = None
    """What a model consumed for it; its handler sets it, for the server's log."""
    ttft: float | None = None
    """Seconds to its first token; set likewise."""
    finish_reason: str | None = None
    """Of the model's stream; set likewise."""


class LeafCursor:
    """Walks the leaves of a node depth first and left to right, as far as they have arrived (rule 16)."""

    def __init__(self, root: Node) -> None:
        self._stack: list[tuple[Node, int]] = [(root, 0)]
        self.blocked_on: Node = root
        """The node that must grow before `advance` can go on."""

    @property
    def done(self) -> bool:
        """True if every leaf was given."""
        return not self._stack

    def advance(self) -> Node | None:
        """The next leaf whose metadata is known, complete or not; None at the end, or where it is `blocked_on` a node.

        Raises `Abort`, NOT_FOUND, where it meets a node that was dropped.
        """
        while self._stack:
            node, at = self._stack.pop()
            if node.dropped:
                raise Abort(Status.NOT_FOUND, f"node {quoted(node.id)} was dropped")
            if node.kind == "leaf" and node.in_order:
                return node
            if at < len(node.children):
                self._stack += [(node, at + 1), (node.children[at], 0)]
            elif not node.whole:
                self._stack.append((node, at))
                self.blocked_on = node
                return None
        return None
