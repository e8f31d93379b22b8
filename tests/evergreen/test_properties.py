"""Properties: fragments shuffled, repeated, split or renamed give the same value, or the same abort, on every wire."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from lmtool.evergreen.codec import decode, encode, encode_json
from lmtool.evergreen.messages import Chunk, ChunkMetadata, NodeFragment, SessionMessage
from lmtool.evergreen.server import EvergreenServer, Plugs
from lmtool.evergreen.session import Session
from lmtool.evergreen.status import Abort
from tests.evergreen.harness import action, grpc_serving, grpc_session, registry
from tests.evergreen.sessions import leaves
from tests.lmtp.harness import PATIENCE, listening

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


class Answer:
    """The tree that comes back, as far as it has."""

    def __init__(self) -> None:
        self.session = Session()
        self.session.start(action("COPY", {"node": "never"}, {"copy": "copy"}))

    def feed(self, message: SessionMessage) -> bool:
        """Take a message; whether the answer is complete."""
        self.session.feed(message)
        return self.session.graph.node("copy").complete


async def over_websocket(port: int, messages: list[SessionMessage], *, text: bool) -> list[bytes]:
    answer = Answer()
    async with connect(f"ws://127.0.0.1:{port}/evergreen", compression=None) as websocket, asyncio.timeout(PATIENCE):
        for message in messages:
            await websocket.send(encode_json(message) if text else encode(message))
        while not answer.feed(decode(await websocket.recv())):
            pass
    return leaves(answer.session, "copy")


async def over_grpc(address: str, messages: list[SessionMessage]) -> list[bytes]:
    answer = Answer()
    async with grpc_session(address) as caller, asyncio.timeout(PATIENCE):
        for message in messages:
            await caller.send(*message.node_fragments, actions=message.actions)
        while not answer.feed(decode((await caller.call.read()).SerializeToString())):
            pass
    return leaves(answer.session, "copy")


@pytest.mark.parametrize("seed", range(6))
async def test_every_wire_means_the_same(seed):
    """A tree in any fragments comes back over WebSocket in both encodings, and over gRPC, as it is by definition."""
    chance = random.Random(seed)
    tree, server = grown(chance), EvergreenServer(Plugs(registry()))

    def spoken() -> list[SessionMessage]:
        parts = [SessionMessage((fragment,)) for fragment in tree.fragments(chance)]
        parts.append(SessionMessage(actions=(action("COPY", {"node": tree.root}, {"copy": "copy"}),)))
        chance.shuffle(parts)
        return parts

    async with listening(server) as port, grpc_serving(server) as address:
        answers = await asyncio.gather(
            over_websocket(port, spoken(), text=True),
            over_websocket(port, spoken(), text=False),
            over_grpc(address, spoken()),
        )
    assert answers == [tree.leaves(tree.root)] * 3
