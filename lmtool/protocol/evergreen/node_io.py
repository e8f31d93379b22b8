"""Nodes as programs read and write them: an input's leaves as they come, an output as a leaf or a tree.

Handlers of actions get them in an `ActionCall`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.nodes import LeafCursor, Reference
from lmtool.protocol.evergreen.status import Abort, Status, invalid, over_limit, quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from lmtool.protocol.evergreen.nodes import ActionRecord, Node
    from lmtool.protocol.evergreen.session import Session

TEXT = "text/plain"


class References(Protocol):
    """Outside data that leaves may refer to."""

    def check(self, uri: str) -> None:
        """Raise `Abort` for a URI that is not accepted; asks nobody and reads nothing."""

    async def read(self, uri: str, mimetype: str, max_bytes: int) -> bytes:
        """The data at an accepted URI. Raises `Abort`, also where it is more than `max_bytes`."""


class Live(Protocol):
    """The running session that nodes belong to: a `Connection`."""

    session: Session
    references: References | None

    async def growth(self, node: Node) -> None:
        """Return when the node has grown since it was last looked at. Raises `Abort` once the session is over."""

    async def room(self, owner: ActionRecord | None) -> None:
        """Return when little enough that this action has written waits to be read by the peer."""

    def write(
        self, node_id: str, data: bytes, metadata: ChunkMetadata | None, *, final: bool, owner: ActionRecord | None
    ) -> None:
        """Write a piece of a leaf."""

    def write_children(
        self, node_id: str, child_ids: Sequence[str], *, final: bool, owner: ActionRecord | None
    ) -> None:
        """Append children to a parent."""

    def close_node(self, node_id: str, owner: ActionRecord | None) -> None:
        """End a node."""


class Leaf:
    """One leaf of a tree: its metadata is known, its bytes may still be on their way."""

    def __init__(self, live: Live, node: Node) -> None:
        assert node.metadata is not None
        self._live = live
        self.node = node
        self.metadata = node.metadata

    @property
    def id(self) -> str:
        """The node's id."""
        return self.node.id

    @property
    def mimetype(self) -> str:
        """As its sender named it."""
        return self.metadata.mimetype

    @property
    def role(self) -> str:
        """Of a conversation; empty where the sender named none."""
        return self.metadata.role

    @property
    def complete(self) -> bool:
        """True if all its bytes are here."""
        return self.node.complete

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes in pieces as they come; where one ends means nothing (rule 7). References are read on the way."""
        at, size, limit = 0, 0, self._live.session.limits.max_value_bytes
        while True:
            while at < len(self.node.pieces):
                piece = await self._bytes(self.node.pieces[at], limit - size)
                at, size = at + 1, size + len(piece)
                if size > limit:
                    raise over_limit("max_value_bytes", limit, f"node {quoted(self.id)} is too long")
                yield piece
            if self.node.dropped:
                raise Abort(Status.NOT_FOUND, f"node {quoted(self.id)} was dropped")
            if self.node.complete:
                return
            await self._live.growth(self.node)

    async def _bytes(self, piece: bytes | Reference, room: int) -> bytes:
        if not isinstance(piece, Reference):
            return piece
        if self._live.references is None:
            raise invalid(f"node {quoted(self.id)} refers to outside data, which is not read here")
        return await self._live.references.read(piece.uri, self.mimetype, room)

    async def value(self) -> bytes:
        """All its bytes, once they are here."""
        return b"".join([piece async for piece in self])

    async def text(self) -> str:
        """Its bytes as UTF-8. Raises `Abort`, INVALID_ARGUMENT, for what is none."""
        return as_text(await self.value(), self.id)


class InputNode:
    """A node of either side to read: `async for leaf in node` gives its leaves in order as they come."""

    def __init__(self, live: Live, node: Node) -> None:
        self._live = live
        self.node = node

    @property
    def id(self) -> str:
        """The root node's id; it has no meaning beside being an id (rule 22)."""
        return self.node.id

    @property
    def complete(self) -> bool:
        """True if all of the tree is here."""
        return self.node.complete

    async def __aiter__(self) -> AsyncIterator[Leaf]:
        """The leaves depth first, left to right; each as soon as its metadata is here and those before it were given.

        A leaf that is given may be incomplete: `Leaf.complete`, `Leaf.value`.
        """
        cursor = LeafCursor(self.node)
        while not cursor.done:
            node = cursor.advance()
            if node is not None:
                yield Leaf(self._live, node)
            elif not cursor.done:
                await self._live.growth(cursor.blocked_on)

    async def completed(self) -> None:
        """Return when all of the tree is here."""
        while not self.node.complete:
            await self._live.growth(self.node)

    async def leaves(self) -> list[tuple[ChunkMetadata, bytes]]:
        """Metadata and bytes of every leaf, once all are here."""
        found, size, limit = [], 0, self._live.session.limits.max_value_bytes
        async for leaf in self:
            value = await leaf.value()
            size += len(value)
            if size > limit:
                raise over_limit("max_value_bytes", limit, f"node {quoted(self.id)} is too long")
            found.append((leaf.metadata, value))
        return found

    async def value(self) -> bytes:
        """The bytes of all leaves, joined, once they are here (rule 16)."""
        return b"".join([value for _, value in await self.leaves()])

    async def text(self) -> str:
        """The value as UTF-8. Raises `Abort`, INVALID_ARGUMENT, for what is none."""
        return as_text(await self.value(), self.id)


class OutputNode:
    """A node to write: bytes make it a leaf, children a parent. It must be closed at its end.

    Each write returns once the peer has read enough of what its action wrote before.
    """

    def __init__(self, live: Live, node_id: str, owner: ActionRecord | None = None) -> None:
        """owner: the action that it is output of."""
        self._live = live
        self._owner = owner
        self._begun = False
        self.id = node_id
        self.closed = False

    async def write(
        self, data: bytes | str, mimetype: str = TEXT, role: str = "", metadata: ChunkMetadata | None = None
    ) -> None:
        """Append to a leaf. mimetype, role or metadata: what the first write says holds for all of it (rule 9)."""
        first = None if self._begun else metadata or ChunkMetadata(mimetype, role)
        self._begun = True
        self._live.write(self.id, _as_bytes(data), first, final=False, owner=self._owner)
        await self._live.room(self._owner)

    async def put(self, data: bytes | str, mimetype: str = TEXT, role: str = "") -> None:
        """Write all of a leaf, and close it."""
        self._begun = self.closed = True
        self._live.write(self.id, _as_bytes(data), ChunkMetadata(mimetype, role), final=True, owner=self._owner)
        await self._live.room(self._owner)

    def child(self, node_id: str | None = None) -> OutputNode:
        """A new last child, to be written at any time; the id is random by default (rule 26)."""
        child = OutputNode(self._live, node_id or uuid.uuid4().hex, self._owner)
        self.add(child.id)
        return child

    def add(self, *node_ids: str) -> None:
        """Append nodes of the session as children, of either side and in any state (rule 15, 30)."""
        self._live.write_children(self.id, node_ids, final=False, owner=self._owner)

    def close(self) -> None:
        """End the node; without content it is an empty one. Does nothing the second time."""
        if not self.closed:
            self.closed = True
            self._live.close_node(self.id, self._owner)


def as_text(value: bytes, node_id: str) -> str:
    """Bytes as UTF-8. Raises `Abort`, INVALID_ARGUMENT, with the node's id."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the text of node {quoted(node_id)} is no UTF-8 at byte {error.start}") from None


def _as_bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data
