"""What one side has written and not yet sent: pieces of one node that wait together become one fragment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmtool.protocol.evergreen.messages import Action, Chunk, ChunkMetadata, NodeFragment, SessionMessage
from lmtool.protocol.evergreen.nodes import Reference

if TYPE_CHECKING:
    from lmtool.protocol.evergreen.nodes import ActionRecord

Part: TypeAlias = "bytes | Reference | tuple[str, ...]"
"""Payload, a reference to payload, or ids of children."""

_FRAGMENT_BYTES = 64
"""What a fragment takes beside its payload."""


@dataclass(slots=True)
class _Waiting:
    """One node's unsent parts."""

    owner: ActionRecord | None
    metadata: ChunkMetadata | None = None
    """To be sent with seq 0."""
    seq: int = 0
    """Of its next fragment."""
    parts: list[Part] = field(default_factory=list)
    final: bool = False


class Outbox:
    """Actions and fragments in the order of their nodes; seq is counted as they leave, so that it has no gaps."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._waiting: dict[str, _Waiting] = {}
        """Nodes with something to send, by id."""
        self._open: dict[str, _Waiting] = {}
        """Nodes that are not closed, by id."""
        self.size = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        return bool(self._actions or self._waiting)

    def add_action(self, action: Action) -> None:
        """Queue an action; it goes before any node (the source: actions before their inputs)."""
        self._actions.append(action)

    def add(
        self,
        node_id: str,
        part: Part | None,
        *,
        metadata: ChunkMetadata | None,
        final: bool,
        owner: ActionRecord | None,
    ) -> None:
        """Queue a part of a node. metadata: of a leaf, with its first part."""
        waiting = self._open.get(node_id) or _Waiting(owner)
        self._open[node_id] = self._waiting[node_id] = waiting
        waiting.metadata = waiting.metadata or metadata
        waiting.final = final
        if part is not None:
            waiting.parts.append(part)
        self._count(waiting, _size(part))
        if final:
            del self._open[node_id]

    def take(self, max_bytes: int, max_fragments: int) -> SessionMessage | None:
        """The next message, of about `max_bytes` of payload; None where nothing waits."""
        if not self:
            return None
        actions, self._actions = tuple(self._actions), []
        fragments: list[NodeFragment] = []
        room = max_bytes
        while self._waiting and room > 0 and len(fragments) < max_fragments:
            node_id, waiting = next(iter(self._waiting.items()))
            fragment, size = self._fragment(node_id, waiting, room)
            room -= size + _FRAGMENT_BYTES
            fragments.append(fragment)
            if not waiting.parts:
                del self._waiting[node_id]
        return SessionMessage(tuple(fragments), actions)

    def _fragment(self, node_id: str, waiting: _Waiting, room: int) -> tuple[NodeFragment, int]:
        part = _join(waiting.parts, max(room, 1))
        size = _size(part)
        self._count(waiting, -size)
        chunk = None
        if waiting.metadata is not None or isinstance(part, bytes | Reference):
            ref = part.uri if isinstance(part, Reference) else None
            chunk = Chunk(waiting.metadata, ref, part if isinstance(part, bytes) and part else None)
            waiting.metadata = None
        continued = bool(waiting.parts) or not waiting.final
        children = part if isinstance(part, tuple) else ()
        fragment = NodeFragment(node_id, waiting.seq, continued, children, chunk)
        waiting.seq += 1
        return fragment, size

    def _count(self, waiting: _Waiting, size: int) -> None:
        self.size += size
        if waiting.owner is not None:
            waiting.owner.unsent_bytes += size


def _join(parts: list[Part], room: int) -> Part | None:
    """Take the first part with those behind it of its kind, up to `room` bytes of payload."""
    if not parts:
        return None
    first = parts[0]
    if isinstance(first, Reference):
        return parts.pop(0)
    kind = type(first)
    count, size = 0, 0
    while count < len(parts) and isinstance(parts[count], kind) and size < room:
        size += _size(parts[count])
        count += 1
    run, parts[:count] = parts[:count], []
    if not isinstance(first, bytes):
        return tuple(child_id for ids in run if isinstance(ids, tuple) for child_id in ids)
    joined = b"".join(piece for piece in run if isinstance(piece, bytes))
    if len(joined) > room:
        parts.insert(0, joined[room:])
    return joined[:room]


def _size(part: Part | None) -> int:
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, tuple):
        return sum(map(len, part))
    return len(part.uri) if part is not None else 0
