"""Properties: fragments shuffled, repeated, split or renamed give the same value, or the same abort, on every wire."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from lmtool.core.errors import ConnectError
from lmtool.protocol.evergreen.client_transport import dial_grpc
from lmtool.protocol.evergreen.codec import decode, encode, encode_json
from lmtool.protocol.evergreen.messages import Chunk, ChunkMetadata, NodeFragment, SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.protocol.evergreen.session import Session
from lmtool.protocol.evergreen.status import Abort, Status, abort_from
from tests.protocol.evergreen.harness import action, grpc_serving, registry
from tests.protocol.evergreen.in_process import Pipe
from tests.protocol.evergreen.sessions import leaves
from tests.protocol.lmtp.harness import PATIENCE, listening

SEEDS = st.integers(0, 2**32)


@dataclass
class Tree:
    """Nodes by id: bytes of a leaf, ids of a parent's children, each after its children; the last one is the root."""

    nodes: dict[str, bytes | list[str]]

    @property
    def root(self) -> str:
        return list(self.nodes)[-1]

    def leaves(self, node_id: str) -> list[bytes]:
        """What a node means."""
        found = self.nodes[node_id]
        return [found] if isinstance(found, bytes) else [one for child in found for one in self.leaves(child)]

    def fragments(self, chance: random.Random) -> list[NodeFragment]:
        """The nodes in fragments, cut at random, in some order, some of them twice."""
        made: list[NodeFragment] = []
        for node_id, whole in self.nodes.items():
            cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(chance.randrange(4)))
            parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
            for seq, part in enumerate(parts):
                continued = seq < len(parts) - 1
                if isinstance(part, bytes):
                    chunk = Chunk(ChunkMetadata("x/y") if seq == 0 else None, None, part or None)
                    made.append(NodeFragment(node_id, seq, continued, (), chunk))
                else:
                    made.append(NodeFragment(node_id, seq, continued, tuple(part)))
        made += [chance.choice(made) for _ in range(chance.randrange(5))]
        chance.shuffle(made)
        return made

    def renamed(self, chance: random.Random) -> Tree:
        """The same tree with other ids."""
        names = {name: f"{chance.random()}é" for name in self.nodes}
        return Tree({names[n]: w if isinstance(w, bytes) else [names[c] for c in w] for n, w in self.nodes.items()})


def grown(chance: random.Random) -> Tree:
    """A tree of a few levels; nodes are shared, and below one parent more than once."""
    nodes: dict[str, bytes | list[str]] = {f"leaf{at}": chance.randbytes(chance.randrange(6)) for at in range(4)}
    for at in range(chance.randrange(1, 5)):
        known = list(nodes)
        nodes[f"parent{at}"] = [chance.choice(known) for _ in range(chance.randrange(1, 5))]
    return Tree(nodes)


def outcome(fragments: list[NodeFragment], ids: list[str]) -> list[list[bytes] | None] | str:
    """The value of each node, None for one that is incomplete; or the status of the abort."""
    session = Session()
    try:
        for fragment in fragments:
            session.feed(SessionMessage((fragment,)))
    except Abort as abort:
        return abort.status.name
    found = [session.graph.find(node_id) for node_id in ids]
    return [leaves(session, node.id) if node is not None and node.complete else None for node in found]


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_a_tree_means_the_same(seed):
    """Cut, repeated, shuffled and renamed, a tree has the leaves that it has by definition."""
    chance = random.Random(seed)
    tree = grown(chance)
    for variant in (tree, tree, tree.renamed(chance)):
        [found] = outcome(variant.fragments(chance), [variant.root])
        assert found == tree.leaves(tree.root)


names = st.sampled_from("abcd")
anything = st.builds(
    NodeFragment,
    names,
    st.integers(0, 3),
    st.booleans(),
    st.lists(names, max_size=2).map(tuple),
    st.none() | st.builds(Chunk, st.none() | st.just(ChunkMetadata("x/y")), st.none(), st.binary(max_size=2)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(anything, max_size=8, unique_by=lambda each: (each.id, each.seq)), st.randoms(use_true_random=False))
def test_right_or_wrong_in_any_order(fragments, chance):
    """Whatever fragments say, any order, repetition and renaming gives the same values, or the same abort."""
    expected = outcome(fragments, list("abcd"))
    shuffled = [*fragments, *(fragments[:2])]
    chance.shuffle(shuffled)
    assert outcome(shuffled, list("abcd")) == expected
    new = {"a": "zebra", "b": "a", "c": "ü", "d": "b"}
    renamed = [
        replace(each, id=new[each.id], child_ids=tuple(new[child] for child in each.child_ids)) for each in shuffled
    ]
    assert outcome(renamed, [new[each] for each in "abcd"]) == expected


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_one_message_or_many(seed):
    """How fragments are spread over messages means nothing."""
    chance = random.Random(seed)
    tree = grown(chance)
    fragments, session = tree.fragments(chance), Session()
    while fragments:
        count = chance.randrange(1, 6)
        session.feed(SessionMessage(tuple(fragments[:count])))
        fragments = fragments[count:]
    assert leaves(session, tree.root) == tree.leaves(tree.root)


Send = Callable[[SessionMessage], Awaitable[None]]
Receive = Callable[[], Awaitable[SessionMessage]]
"""Raises `Abort` at the session's end."""
Wire = Callable[[EvergreenServer], AbstractAsyncContextManager[tuple[Send, Receive]]]
ENDED = Abort(Status.OK, "the session has ended")


@asynccontextmanager
async def over_websocket(server: EvergreenServer, *, text: bool) -> AsyncIterator[tuple[Send, Receive]]:
    async with listening(server) as port, connect(f"ws://127.0.0.1:{port}/evergreen", compression=None) as websocket:

        async def send(message: SessionMessage) -> None:
            with suppress(ConnectionClosed):
                await websocket.send(encode_json(message) if text else encode(message))

        async def receive() -> SessionMessage:
            try:
                return decode(await websocket.recv())
            except ConnectionClosed as closed:
                raise abort_from(closed.rcvd.reason) if closed.rcvd is not None else ENDED from None

        yield send, receive


@asynccontextmanager
async def over_grpc(server: EvergreenServer) -> AsyncIterator[tuple[Send, Receive]]:
    async with grpc_serving(server) as address:
        transport, sending = await dial_grpc(address), list[asyncio.Task[None]]()

        async def send(message: SessionMessage) -> None:
            sending.append(asyncio.create_task(transport.send(message)))  # waits for whoever receives, once it is over

        try:
            yield send, partial(received, transport.receive)
        finally:
            await transport.close()
            for each in sending:
                each.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


async def received(receive: Callable[[], Awaitable[SessionMessage | None]]) -> SessionMessage:
    """The next message; raises `ENDED` at the end."""
    message = await receive()
    if message is None:
        raise ENDED
    return message


@asynccontextmanager
async def in_one_process(server: EvergreenServer) -> AsyncIterator[tuple[Send, Receive]]:
    requests, answers = Pipe(), Pipe()

    async def serve() -> None:
        async with server.session("here") as connection:
            try:
                await connection.run(requests.receive, answers.send)
            except (Abort, ConnectError) as end:
                answers.fail(end)

    serving = asyncio.create_task(serve())

    async def send(message: SessionMessage) -> None:
        sending = asyncio.ensure_future(requests.send(message))
        await asyncio.wait({sending, serving}, return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()

    try:
        yield send, partial(received, answers.receive)
    finally:
        requests.fail(ConnectError("the client has left"))
        await serving


WIRES: dict[str, Wire] = {
    "WebSocket, text": partial(over_websocket, text=True),
    "WebSocket, binary": partial(over_websocket, text=False),
    "gRPC": over_grpc,
    "in process": in_one_process,
}


def random_fragments(chance: random.Random) -> list[NodeFragment]:
    """A few fragments of four nodes, right or wrong."""
    made = {}
    for _ in range(chance.randrange(1, 6)):
        node_id, seq, kind = chance.choice("abcd"), chance.choice((0, 0, 0, 1, 2)), chance.random()
        children = tuple(chance.choice("abcd") for _ in range(2)) if kind > 0.7 else ()
        metadata = ChunkMetadata("x/y") if (seq == 0) != (chance.random() > 0.9) else None
        chunk = Chunk(metadata, None, chance.randbytes(2)) if kind < 0.75 else None
        made[node_id, seq] = NodeFragment(node_id, seq, chance.random() > 0.6, children, chunk)
    return list(made.values())


async def spoken(wire: Wire, messages: list[SessionMessage], ids: Sequence[str]) -> list[list[bytes]] | str:
    """The copies of these nodes once messages were sent over a wire; the status of the abort, where there are none."""
    mine = Session()
    copies = [action("COPY", {"node": each}, {"copy": f"copy {each}"}) for each in ids]
    records = [mine.start(action("COPY", {"node": f"not {each}"}, {"copy": f"copy {each}"})) for each in ids]
    async with wire(EvergreenServer(Plugs(registry()))) as (send, receive), asyncio.timeout(PATIENCE):
        for message in (*messages, *(SessionMessage(actions=(copy,)) for copy in copies)):
            await send(message)
        try:
            while not ids or not all(record.outputs["copy"].complete for record in records):
                mine.feed(await receive())
        except Abort as abort:
            return abort.status.name
    return [leaves(mine, f"copy {each}") for each in ids]


@pytest.mark.parametrize("wire", WIRES)
async def test_every_wire_means_the_same(wire):
    """Trees in any fragments, and fragments right or wrong: on each wire the values, or the abort, of the core."""
    chance, ends = random.Random(wire), Counter[str]()
    for _ in range(12):
        tree = grown(chance).renamed(chance)
        messages = [SessionMessage((each,)) for each in tree.fragments(chance)]
        assert await spoken(WIRES[wire], messages, [tree.root]) == [tree.leaves(tree.root)]
    while min(ends["abort"], ends["value"]) < 8:
        fragments = random_fragments(chance)
        expected = outcome(fragments, list("abcd"))
        shuffled = [*fragments, *fragments[:2]]
        chance.shuffle(shuffled)
        messages = [SessionMessage((each,)) for each in shuffled]
        if isinstance(expected, str):
            ends["abort"] += 1
            assert await spoken(WIRES[wire], messages, []) == expected
        elif values := {node_id: value for node_id, value in zip("abcd", expected, strict=True) if value is not None}:
            ends["value"] += 1
            assert await spoken(WIRES[wire], messages, list(values)) == list(values.values())
