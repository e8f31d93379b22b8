"""Actions for tests of sessions, and a session in process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port, Registry
from lmtool.protocol.evergreen.codec import encode
from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.grpc_server import GrpcServer
from lmtool.protocol.evergreen.messages import (
    Action,
    Chunk,
    ChunkMetadata,
    NamedParameter,
    NodeFragment,
    SessionMessage,
)
from lmtool.protocol.evergreen.server import EvergreenServer
from tests.protocol.evergreen.in_process import in_process
from tests.protocol.evergreen.stubs import public
from tests.protocol.lmtp.harness import PATIENCE


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
        await child.write(b"", metadata=leaf.metadata)  # an empty leaf is a value
        async for piece in leaf:
            await child.write(piece)
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


@contextlib.asynccontextmanager
async def grpc_serving(server: EvergreenServer, policy: AccessPolicy | None = None) -> AsyncIterator[str]:
    """A server's sessions over gRPC on a free port; its address."""
    wire = GrpcServer(server, policy or AccessPolicy())
    port = await wire.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.drain(0)
        await wire.stop()


class Caller:
    """A session over gRPC with classes of the public interface."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.values: dict[str, bytes] = {}
        """Bytes of each leaf so far, by id."""
        self.closed: set[str] = set()

    async def send(self, *fragments: NodeFragment, actions: Sequence[Action] = ()) -> None:
        """Send a message, by way of the public interface's own classes."""
        data = encode(SessionMessage(fragments, tuple(actions)))
        await self.call.write(public("SessionMessage").FromString(data))

    async def read(self) -> bool:
        """Take the next message; False at the end."""
        async with asyncio.timeout(PATIENCE):
            message = await self.call.read()
        if message is grpc.aio.EOF:
            return False
        for fragment in message.node_fragments:
            self.values[fragment.id] = self.values.get(fragment.id, b"") + fragment.chunk_fragment.data
            if not fragment.continued:
                self.closed.add(fragment.id)
        return True

    async def value(self, node_id: str) -> bytes:
        """A leaf's bytes, once it is closed."""
        while node_id not in self.closed:
            assert await self.read(), f"the session ended before {node_id}"
        return self.values[node_id]

    async def failure(self) -> tuple[str, str]:
        """The status and the text that the session ends with."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self.read():
                pass
        return (await self.call.code()).name, await self.call.details()


@contextlib.asynccontextmanager
async def grpc_session(address: str, **options: Any) -> AsyncIterator[Caller]:
    """A session with stubs of the public interface."""
    kind = public("SessionMessage")
    async with grpc.aio.insecure_channel(address) as channel:
        start = channel.stream_stream(
            "/evergreen.v2.EvergreenService/StartSession",
            request_serializer=kind.SerializeToString,
            response_deserializer=kind.FromString,
        )
        call = start(**options)
        try:
            yield Caller(call)
        finally:
            call.cancel()
