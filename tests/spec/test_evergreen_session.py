"""Evergreen, the session (EVG-38 to EVG-43)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lmtool.core.errors import ConnectError
from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port
from lmtool.protocol.evergreen.codec import decode
from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.messages import ChunkMetadata, SessionMessage
from lmtool.protocol.evergreen.session import ActionReceived, Session
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import action, leaf, parent, registry, session
from tests.protocol.evergreen.in_process import in_process
from tests.protocol.evergreen.sessions import fed, leaves

ASK = action("UPPER", {"text": "in"}, {"text": "out"})


@pytest.mark.parametrize("side", ["client", "server"])
async def test_either_side_may_abort(side):
    """EVG-38: an abort of either side, at any time, ends the session at both; what waits there is told why."""
    server, client = Connection(registry()), Connection()
    reason = Abort(Status.PERMISSION_DENIED, "no more of this")

    async def converse() -> None:
        async with in_process(server, client):
            client.start(ASK)
            (server if side == "server" else client).fail(reason)
            await client.node("out").completed()

    with pytest.raises(Abort, match="no more of this"):
        await converse()
    assert server.running == 0


async def test_the_half_close_is_answered():
    """EVG-39: what can be completed is, after the client's half-close too; then the session ends in order."""
    async with session() as client:
        client.start(ASK)
        client.write("in", b"jam", ChunkMetadata("text/plain"), final=True)
        client.finish()
        assert await client.node("out").text() == "JAM"


@pytest.mark.parametrize(
    "parts",
    [
        [ASK],
        [ASK, leaf("in", "x", continued=True)],
        [ASK, leaf("in", "x", 1)],
        [ASK, parent("in", "a", "b"), leaf("a", "x")],
        [ASK, parent("in", "first"), action("X", {"in": "never"}, {"out": "first"})],
    ],
    ids=["nothing", "not final", "a gap", "a child is missing", "an action that cannot run"],
)
def test_inputs_that_cannot_be_completed(parts):
    """EVG-39: an input that can no longer be completed is FAILED_PRECONDITION at the half-close, not a hang."""
    ended = fed(*parts)
    with pytest.raises(Abort, match="waits for node") as caught:
        ended.feed_end()
    assert caught.value.status is Status.FAILED_PRECONDITION


def test_inputs_that_others_complete():
    """EVG-39: an input that waits for another action's output alone is no reason to abort."""
    ended = fed(leaf("in", "x"), ASK, parent("tree", "in", "out"), action("X", {"in": "tree"}, {"out": "end"}))
    ended.feed_end()
    ended.emit("out", b"X", ChunkMetadata("text/plain"), final=True)
    assert leaves(ended, "tree") == [b"x", b"X"]


async def test_a_client_that_vanishes():
    """EVG-40: its actions are cancelled, and their tasks have ended, when the connection has."""
    cancelled = asyncio.Event()

    async def wait(call: ActionCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = Connection(registry(ActionType("WAIT", (), (Port("out"),), wait)))
    begun = asyncio.Event()

    async def receive() -> SessionMessage | None:
        if begun.is_set():
            raise ConnectError("the client has left")
        begun.set()
        return SessionMessage(actions=(action("WAIT", {}, {"out": "1"}),))

    async def send(message: SessionMessage | None) -> None:
        raise AssertionError(message)

    with pytest.raises(ConnectError):
        await server.run(receive, send)
    assert cancelled.is_set()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize("frame", [b"\xff", "{", b"\x0a\x05ab"], ids=repr)
def test_what_is_no_message(frame):
    """EVG-41: bytes that are no message are an abort of their session, INVALID_ARGUMENT."""
    with pytest.raises(Abort) as caught:
        decode(frame)
    assert caught.value.status is Status.INVALID_ARGUMENT


def test_empty_messages():
    """EVG-42: an empty message changes nothing, in either encoding, also after the half-close."""
    empty = Session()
    assert decode(b"") == decode("{}") == SessionMessage()
    assert empty.feed(SessionMessage()) == []
    empty.feed_end()
    assert empty.feed(SessionMessage()) == []


@pytest.mark.parametrize("sizes", list(itertools.product([0, 1, 700], repeat=3)), ids=str)
def test_what_is_sent_keeps_the_rules(sizes):
    """EVG-43: seq counts up from 0, metadata is on seq 0 alone, one fragment is final, whatever was written when."""
    sending = Session(SessionLimits(sent_message_bytes=500))
    [event, *_] = sending.feed(SessionMessage(actions=(action("X", {}, {"leaf": "l", "tree": "t", "none": "n"}),)))
    assert isinstance(event, ActionReceived)
    sent: list[SessionMessage] = []
    for at, size in enumerate(sizes):
        metadata = ChunkMetadata("x/y") if at == 0 else None
        sending.emit("l", bytes(size), metadata, owner=event.record)
        sending.emit_children("t", [f"child{at}"], owner=event.record)
        sending.emit(f"child{at}", b"c", ChunkMetadata("x/y"), final=True, owner=event.record)
        if size:
            sent += iter(sending.take, None)
    sending.end_action(event.record)
    sent += iter(sending.take, None)
    reading = Session(SessionLimits(strict_metadata=True))
    for message in sent:
        reading.feed(message)
    assert leaves(reading, "l") == [bytes(sum(sizes))]
    assert leaves(reading, "t") == [b"c"] * 3
    fragments = [each for message in sent for each in message.node_fragments]
    for node_id in ("l", "t", "n", "child0"):
        own = [each for each in fragments if each.id == node_id]
        assert [each.seq for each in own] == list(range(len(own)))
        assert [each.continued for each in own] == [True] * (len(own) - 1) + [False]
    assert event.record.unsent_bytes == sending.unsent_bytes == 0
