"""Actions for tests of sessions, and a session in process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from lmtool.evergreen.actions import ActionCall, ActionType, Port, Registry
from lmtool.evergreen.config import SessionLimits
from lmtool.evergreen.connection import Connection
from lmtool.evergreen.in_process import in_process
from lmtool.evergreen.messages import Action, Chunk, ChunkMetadata, NamedParameter, NodeFragment


async def upper(call: ActionCall) -> None:
    """The text in capitals, a leaf streamed as it comes."""
    async for leaf in call.inputs["text"]:
        async for piece in leaf:
            await call.outputs["text"].write(piece.upper())


async def copy(call: ActionCall) -> None:
    """The same tree of leaves, one new child each."""
    output = call.outputs["copy"]
    async for leaf in call.inputs["node"]:
        child = output.child()
        async for piece in leaf:
            await child.write(piece, metadata=leaf.metadata)
        child.close()


def registry(*more: ActionType) -> Registry:
    """UPPER, COPY and further ones."""
    return Registry(
        [
            ActionType("UPPER", (Port("text", required=True),), (Port("text"),), upper),
            ActionType("COPY", (Port("node", aliases=("tree",), required=True),), (Port("copy"),), copy),
            *more,
        ]
    )


def leaf(node_id: str, data: bytes | str = b"", seq: int = 0, mimetype: str | None = "text/plain", **more: Any):
    """A fragment of a leaf; metadata on seq 0."""
    metadata = ChunkMetadata(mimetype) if seq == 0 and mimetype is not None else None
    data = data.encode() if isinstance(data, str) else data
    return NodeFragment(node_id, seq, chunk_fragment=Chunk(metadata, None, data or None), **more)


def parent(node_id: str, *children: str, seq: int = 0, continued: bool = False) -> NodeFragment:
    """A fragment of a parent."""
    return NodeFragment(node_id, seq, continued, children)


def action(name: str, inputs: dict[str, str], outputs: dict[str, str], **more: Any) -> Action:
    """An action with parameters by name."""
    pairs = [tuple(NamedParameter(*each) for each in given.items()) for given in (inputs, outputs)]
    return Action(name, *pairs, **more)


@contextlib.asynccontextmanager
async def session(actions: Registry | None = None, limits: SessionLimits | None = None) -> AsyncIterator[Connection]:
    """The client's end of a session in process."""
    async with in_process(Connection(actions or registry(), limits), Connection()) as client:
        yield client
