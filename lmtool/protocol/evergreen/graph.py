"""The graph of a session's nodes, which grows by fragments, checks each edge as it comes, and knows what is complete.

Bytes are a node's value: that of a leaf is its fragments' payloads joined by seq, that of a parent the leaves below it,
depth first and left to right (rules 7, 16). Completion spreads upwards along reverse edges, each edge once.

Nothing here is recursive. Two levels are kept for each node, and raised along what stands above it when an edge is
added: the rank over parents and the outputs of actions, which finds a cycle as the edge comes that closes it (a raise
that reaches the lower end of the edge), and the height over parents alone, which is the nesting. The number of leaves
is an upper bound that is refused at the edge that exceeds it, so that nothing large is ever walked. What this work may
come to over a session is limited (`max_graph_steps`).
"""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import TYPE_CHECKING

from lmtool.protocol.evergreen.nodes import Node, Reference
from lmtool.protocol.evergreen.status import Abort, Status, invalid, over_limit, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lmtool.protocol.evergreen.config import SessionLimits
    from lmtool.protocol.evergreen.messages import NodeFragment
    from lmtool.protocol.evergreen.nodes import ActionRecord, Side

_FRAGMENT_COST = 128
"""Bytes that keeping a fragment is counted as, beside its payload."""
_EDGE_COST = 64


class Graph:
    """All nodes of one session. Every method that takes a peer's words raises `Abort`; the session is over then."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._nodes: dict[str, Node] = {}
        self._rank: dict[Node, int] = {}
        self._height: dict[Node, int] = {}
        self.steps = 0
        """Updates of nodes by edges below them, so far."""
        self.size = 0
        """Bytes that all nodes are counted as."""
        self.grown: dict[Node, None] = {}
        """Nodes with more in order, or complete, since the caller last cleared it."""

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, node_id: str) -> Node | None:
        """A node that was written or named; None for an id never seen."""
        return self._nodes.get(node_id)

    def node(self, node_id: str) -> Node:
        """The node of an id, which is named from now on. Raises `Abort`, NOT_FOUND for one that was dropped."""
        node = self._nodes.get(node_id)
        if node is None:
            self.check_name(node_id, "a node's id")
            if len(self._nodes) >= self._limits.max_nodes:
                raise over_limit("max_nodes", self._limits.max_nodes, "this session has no room for another node")
            node = self._nodes[node_id] = Node(node_id)
            self._rank[node] = self._height[node] = 0
            self._charge(node, _FRAGMENT_COST + len(node_id))
        elif node.dropped:
            raise Abort(Status.NOT_FOUND, f"node {quoted(node_id)} was dropped")
        return node

    def check_name(self, name: str, what: str) -> None:
        """Raise `Abort` for an empty id or one that is too long (rules 13, 22)."""
        if not name:
            raise invalid(f"{what} is empty")
        limit = self._limits.max_id_bytes
        if len(name) > limit or len(name.encode(errors="surrogatepass")) > limit:
            raise over_limit("max_id_bytes", limit, f"{what} is too long, {quoted(name)}")

    # Fragments.

    def write(self, fragment: NodeFragment, writer: Side) -> None:
        """Take one fragment of a node (rules 1 to 13)."""
        node = self.node(fragment.id)
        self._claim(node, writer)
        seq = fragment.seq
        if seq < 0:
            raise invalid(f"node {quoted(node.id)} has a fragment with seq {seq}; seq counts from 0")
        if seq < node.in_order or seq in node.early:
            return  # the first one wins, whatever this one says (rule 3)
        self._check_seq(node, fragment)
        self._check_content(node, fragment)
        if fragment.child_ids:
            self._link(node, [self.node(child_id) for child_id in fragment.child_ids])
        chunk = fragment.chunk_fragment
        self._charge(node, _FRAGMENT_COST + (len(chunk.data or chunk.ref or "") if chunk is not None else 0))
        self._place(node, fragment)

    def _claim(self, node: Node, writer: Side) -> None:
        """Note who writes a node; only one side may (rule 28)."""
        if node.writer is None:
            node.writer = writer
        elif node.writer != writer:
            raise invalid(f"node {quoted(node.id)} is written by the other side; choose another id")

    def _check_seq(self, node: Node, fragment: NodeFragment) -> None:
        seq, final = fragment.seq, node.final_seq
        name = f"node {quoted(node.id)}"
        if final is not None and seq > final:
            raise invalid(f"{name} ended with seq {final}; a fragment with seq {seq} cannot follow")
        if seq >= self._limits.max_fragments:
            raise over_limit("max_fragments", self._limits.max_fragments, f"{name} has a fragment with seq {seq}")
        if not fragment.continued and node.highest > seq:
            raise invalid(f"{name} ends with seq {seq}, but a fragment with seq {node.highest} has arrived")

    def _check_content(self, node: Node, fragment: NodeFragment) -> None:
        """A node has payloads or children, and its metadata once (rules 8, 9, 10)."""
        chunk = fragment.chunk_fragment
        name = f"node {quoted(node.id)}"
        kinds = {node.kind, "leaf" if chunk is not None else None, "parent" if fragment.child_ids else None}
        if {"leaf", "parent"} <= kinds:
            raise invalid(f"{name} has both a chunk and children; a node has one of them")
        node.kind = "leaf" if "leaf" in kinds else "parent" if "parent" in kinds else None
        self._check_metadata(node, fragment)
        seq_0_arrived = node.in_order > 0 or fragment.seq == 0
        if node.kind == "leaf" and seq_0_arrived and node.metadata is None:
            raise invalid(f"{name} has no metadata on its fragment with seq 0; a leaf needs a mime type there")

    def _check_metadata(self, node: Node, fragment: NodeFragment) -> None:
        chunk = fragment.chunk_fragment
        if chunk is None:
            return
        if fragment.seq == 0:
            node.metadata = chunk.metadata
            later = node.repeated_metadata
        else:
            has_payload = bool(chunk.data) or chunk.ref is not None
            later = chunk.metadata if has_payload or self._limits.strict_metadata else None
            node.repeated_metadata = node.repeated_metadata or later
        if later is None:
            return
        expected = node.metadata or node.repeated_metadata
        if self._limits.strict_metadata or later != expected:
            raise invalid(
                f"node {quoted(node.id)} has other metadata after seq 0; only its fragment with seq 0 has metadata"
            )

    def _place(self, node: Node, fragment: NodeFragment) -> None:
        """Keep a fragment, and take over what has no gap any more."""
        early = node.early
        early[fragment.seq] = fragment
        node.highest = max(node.highest, fragment.seq)
        if not fragment.continued:
            node.final_seq = fragment.seq
        before = node.in_order
        while (following := early.pop(node.in_order, None)) is not None:
            node.in_order += 1
            node.children += [self._nodes[child_id] for child_id in following.child_ids]
            self._append(node, following)
        if node.in_order > before:
            self.grown[node] = None
            self._complete_from(node)

    def _append(self, node: Node, fragment: NodeFragment) -> None:
        chunk = fragment.chunk_fragment
        if chunk is None:
            return
        if chunk.ref is not None:
            node.pieces.append(Reference(chunk.ref))
        elif chunk.data:
            node.pieces.append(chunk.data)
            node.size += len(chunk.data)

    def _complete_from(self, start: Node) -> None:
        """Mark a node complete if it is, and what becomes complete above it."""
        ready = [start]
        while ready:
            node = ready.pop()
            if node.complete or not node.whole or node.open_children:
                continue
            if node.kind == "parent":
                node.size = sum(child.size for child in node.children)
            if node.size > self._limits.max_value_bytes:
                what = f"node {quoted(node.id)} is {node.size:,} bytes"
                raise over_limit("max_value_bytes", self._limits.max_value_bytes, what)
            node.complete = True
            self.grown[node] = None
            for parent in node.parents:
                parent.open_children -= 1
                ready.append(parent)

    # Edges.

    def _link(self, parent: Node, children: Sequence[Node]) -> None:
        """Add edges; raises `Abort` for a cycle, and where nesting or the number of leaves is above its limit."""
        if parent.edges + len(children) > self._limits.max_children:
            name = f"node {quoted(parent.id)} has more children"
            raise over_limit("max_children", self._limits.max_children, name)
        self._charge(parent, sum(_EDGE_COST + len(child.id) for child in children))
        new = dict.fromkeys(child for child in children if parent not in child.parents)
        if new:
            self._raise_rank(parent, new)
            highest = max(new, key=self._height.__getitem__)
            self._raise(self._height, parent, highest, attrgetter("parents"), self._check_nesting)
            parent.open_children += sum(not child.complete for child in new)
        for child in children:
            child.parents[parent] = child.parents.get(parent, 0) + 1
        first = not parent.edges
        parent.edges += len(children)
        self._add_leaves(parent, sum(child.leaves for child in children) - first)

    def _check_nesting(self, node: Node, height: int) -> None:
        if height > self._limits.max_nesting:
            what = f"node {quoted(node.id)} has more levels of children below it"
            raise over_limit("max_nesting", self._limits.max_nesting, what)

    def _raise_rank(self, upper: Node, lower: Collection[Node]) -> None:
        """Let `upper` depend on these; raises `Abort` where one of them depends on `upper` already (rules 17, 18).

        Such a one ranks above `upper`, and no higher than the highest of them: lifting `upper` over that meets it.
        """

        def check(node: Node, _rank: int) -> None:
            if node in lower:
                raise invalid(
                    f"node {quoted(upper.id)} would depend on itself by way of {quoted(node.id)}; "
                    "a node contains neither itself nor what is made of it"
                )

        check(upper, 0)
        self._raise(self._rank, upper, max(lower, key=self._rank.__getitem__), _above, check)

    def _raise(
        self,
        levels: dict[Node, int],
        upper: Node,
        lower: Node,
        above: Callable[[Node], Iterable[Node]],
        check: Callable[[Node, int], None],
    ) -> None:
        """Lift `upper` over `lower`, and all that stands on it as far as that is needed."""
        if levels[upper] > levels[lower]:
            return
        waiting = [(upper, levels[lower] + 1)]
        while waiting:
            node, level = waiting.pop()
            self._step()
            if levels[node] >= level:
                continue
            check(node, level)
            levels[node] = level
            waiting += [(each, level + 1) for each in above(node)]

    def _add_leaves(self, start: Node, more: int) -> None:
        """Count leaves that were added below a node, in it and in all that contains it, each of these once."""
        if not more:
            return
        pending = {start: more}
        queue = [(self._rank[start], 0, start)]
        while queue:
            _, _, node = heapq.heappop(queue)
            more = pending.pop(node)
            node.leaves += more
            if node.leaves > self._limits.max_leaves:
                what = f"node {quoted(node.id)} has too many leaves once it is flattened"
                raise over_limit("max_leaves", self._limits.max_leaves, what)
            for parent, times in node.parents.items():
                self._step()
                if parent not in pending:
                    heapq.heappush(queue, (self._rank[parent], self.steps, parent))
                pending[parent] = pending.get(parent, 0) + more * times

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._limits.max_graph_steps:
            what = "this session's nodes were linked in an order that takes too much work"
            raise over_limit("max_graph_steps", self._limits.max_graph_steps, what)

    def _charge(self, node: Node, cost: int) -> None:
        node.charge += cost
        self.size += cost
        if self.size > self._limits.max_session_bytes:
            what = f"the nodes of this session are more than {self._limits.max_session_bytes:,} bytes"
            raise over_limit("max_session_bytes", self._limits.max_session_bytes, what)

    # Actions.

    def open_action(self, record: ActionRecord) -> None:
        """Let an action's outputs depend on its inputs; raises `Abort` for a deadlock (rule 18)."""
        inputs = dict.fromkeys(record.inputs.values())
        for node in inputs:
            node.readers[record] = None
        for output in record.outputs.values() if inputs else ():
            self._raise_rank(output, inputs)

    def end_action(self, record: ActionRecord) -> None:
        """Forget what an action needed."""
        record.ended = True
        for node in record.inputs.values():
            node.readers.pop(record, None)

    def stuck(self, root: Node) -> Node | None:
        """A node below `root`, or itself, that only a peer which sends nothing more could complete."""
        waiting, visited = [root], {root}
        while waiting:
            node = waiting.pop()
            if not node.whole and node.writer != "here":
                return node
            below = [child for child in node.children if not child.complete and child not in visited]
            visited.update(below)
            waiting += below
        return None

    def drop(self, node: Node, but: ActionRecord | None = None) -> None:
        """Free a node's contents; its id stays in use, and later use of it is an error.

        but: an action that does not count, such as the one that asks for it. Raises `Abort`, FAILED_PRECONDITION,
        while another action has the node among its outputs, or below one of its inputs.
        """
        if self.in_use(node, but):
            text = f"node {quoted(node.id)} is needed by an action that has not ended"
            raise Abort(Status.FAILED_PRECONDITION, text)
        for child in dict.fromkeys(node.children):
            child.parents.pop(node, None)
        self.size -= node.charge - _FRAGMENT_COST
        node.dropped, node.charge = True, _FRAGMENT_COST
        node.pieces, node.children, node.early = [], [], {}
        self.grown[node] = None

    def in_use(self, node: Node, but: ActionRecord | None = None) -> bool:
        """True if an action that has not ended writes this node, or reads it or something that contains it."""
        if node.writer == "here" and not node.complete:
            return True
        waiting, visited = [node], {node}
        while waiting:
            each = waiting.pop()
            if any(reader is not but for reader in each.readers):
                return True
            above = [parent for parent in each.parents if parent not in visited]
            visited.update(above)
            waiting += above
        return False

    def below(self, root: Node) -> list[Node]:
        """A node and all that it contains, each once."""
        found, waiting = {root: None}, [root]
        while waiting:
            more = [child for child in waiting.pop().children if child not in found]
            found.update(dict.fromkeys(more))
            waiting += more
        return list(found)


def _above(node: Node) -> Iterable[Node]:
    """What depends on a node: its parents, and the outputs of running actions that read it."""
    yield from node.parents
    for record in node.readers:
        yield from record.outputs.values()
