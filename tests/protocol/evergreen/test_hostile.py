"""Hostile clients: each ends its own session with the right status, in little time and memory; others go on."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import tracemalloc

import pytest

from lmtool.net.access import stall
from lmtool.protocol.evergreen.actions import ActionType, Port
from lmtool.protocol.evergreen.codec import decode, encode, encode_json
from lmtool.protocol.evergreen.config import EvergreenConfig, SessionLimits
from lmtool.protocol.evergreen.messages import NodeFragment, SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.protocol.evergreen.session import Session
from lmtool.protocol.evergreen.status import Abort, Status
from lmtool.protocol.lmtp.config import ServerConfig
from tests.lab.evergreen import CASES
from tests.protocol.evergreen.harness import action, grpc_serving, grpc_session, leaf, parent, registry
from tests.protocol.evergreen.sessions import fed
from tests.protocol.evergreen.test_websocket import ASK, dialled, value
from tests.protocol.lmtp.harness import PATIENCE, listening, until


def batches(fragments: list[NodeFragment], size: int = 10_000) -> list[SessionMessage]:
    """Messages of many fragments."""
    return [SessionMessage(tuple(fragments[at : at + size])) for at in range(0, len(fragments), size)]


def lifted() -> list[SessionMessage]:
    """Many parents of one node, below which a chain through actions grows, so that all of them are lifted each time."""
    fan = batches([parent(f"p{at}", "chain0") for at in range(9_000)])
    actions = [action("X", {"in": f"chain{at + 1}"}, {"out": f"chain{at}"}) for at in range(128)]
    return [*fan, *(SessionMessage(actions=(one,)) for one in actions)]


HOSTILE = {
    "too many ids": (batches([leaf(f"n{at}", "x") for at in range(20_000)]), "max_nodes"),
    "too many children": (
        [SessionMessage((parent("p", *["c"] * 1_000, seq=at, continued=True),)) for at in range(11)],
        "max_children",
    ),
    "many fragments": (
        batches([leaf("a", "x", at, continued=True) for at in range(70_000)]),
        "max_fragments",
    ),
    "many actions": (
        [SessionMessage(actions=(action("X", {"in": "a"}, {"out": f"o{at}"}),)) for at in range(200)],
        "max_running_actions",
    ),
    "many bytes": (
        [SessionMessage((leaf("a", bytes(1_000_000), at, continued=True),)) for at in range(80)],
        "max_session_bytes",
    ),
    "lifted again and again": (lifted(), "max_graph_steps"),
    "leaves one by one": (
        batches([parent(f"p{at}", "x") for at in range(9_000)])
        + [SessionMessage((parent("x", "y", seq=at, continued=True),)) for at in range(1000)],
        "max_graph_steps",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_too_much_is_refused(name):
    """The right status and the limit's name, within 5 s, whatever the order."""
    messages, reason = HOSTILE[name]
    began = time.process_time()
    with pytest.raises(Abort) as caught:
        fed(*messages)
    assert reason in caught.value.reason
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.ends == "waits" and name != "nested Any"]
)
def test_the_sizes_of_the_load(name):
    """What `python -m tests.lab.evergreen` sends is refused as it says there."""
    case, session = CASES[name], Session()

    def feed_all() -> None:
        for message in case.make():
            session.feed(decode(message))

    began = time.process_time()
    with pytest.raises(Abort) as caught:
        feed_all()
    assert caught.value.status.name == case.status
    assert case.word in caught.value.reason
    assert time.process_time() - began < 5


def test_many_parameters_take_no_time():
    """Actions of 500 inputs and 500 outputs each are linked once for each parameter, not for each pair."""
    inputs = {f"in{at}": f"i{at}" for at in range(480)}
    actions = [action("X", inputs, {f"out{at}": f"{number}.{at}" for at in range(480)}) for number in range(19)]
    began = time.process_time()
    session = fed(SessionMessage(actions=tuple(actions)))
    assert len(session.running) == 19
    assert time.process_time() - began < 2
    assert session.graph.steps < 20_000


@pytest.mark.parametrize("name", ["too many ids", "many bytes", "many fragments", "too many children"])
def test_what_is_kept_is_bounded(name):
    """Until it is refused, a session keeps no more than 150 MB (the messages apart)."""
    messages, _ = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(Abort):
            fed(*messages)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150_000_000


@pytest.mark.parametrize("text", [True, False], ids=["JSON", "binary"])
async def test_a_long_message_delays_nobody(text):
    """Messages of the longest kind are read beside the event loop, and taken in slices: another session answers."""
    fragments = tuple(leaf("a", "x", at, continued=True) for at in range(16_000))
    message = SessionMessage(fragments)
    frame = encode_json(message) if text else encode(message)
    assert len(frame) < SessionLimits().max_message_bytes
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, dialled(port) as websocket, dialled(port) as other:
        longest = 0.0
        await websocket.send(frame)
        for turn in range(20):
            began = time.thread_time()  # of this thread alone, which has the event loop: no other load counts
            into, out = f"in{turn}", f"out{turn}"
            await other.send(
                encode(SessionMessage((leaf(into, "jam"),), (action("UPPER", {"text": into}, {"text": out}),)))
            )
            assert await value(other, out) == b"JAM"
            longest = max(longest, time.thread_time() - began)
        await websocket.send(encode(ASK))
        assert await value(websocket, "out") == b"JAM"
    assert longest < 1


async def test_one_byte_a_second():
    """A session in which nothing whole arrives ends when its idle time is over, whatever trickles in."""
    limits = SessionLimits(idle_seconds=0.3)
    server = EvergreenServer(Plugs(registry(), EvergreenConfig(limits)))
    async with listening(server) as port:
        slow = socket.create_connection(("127.0.0.1", port))
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        head = f"GET /evergreen HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        await loop.sock_sendall(slow, head.encode())
        answer = await loop.sock_recv(slow, 1000)
        assert answer.startswith(b"HTTP/1.1 101 ")
        await loop.sock_sendall(slow, b"\x82")  # a frame begins, and goes no further
        async with asyncio.timeout(PATIENCE):
            end = await loop.sock_recv(slow, 1000)
        assert end[0] == 0x88
        assert int.from_bytes(end[2:4], "big") == 4400
        assert b"DEADLINE_EXCEEDED" in end
        assert b"idle_seconds" in end
        slow.close()


def test_idle_sessions_end():
    """Time is an argument: a session without traffic and without an action ends after its idle time, no sooner."""
    session = Session(SessionLimits(idle_seconds=600))
    session.note_traffic(100)
    assert session.deadline == 700
    assert session.check_time(699) == []
    with pytest.raises(Abort, match="idle_seconds") as caught:
        session.check_time(700)
    assert caught.value.status is Status.DEADLINE_EXCEEDED


def test_inputs_that_do_not_come():
    """An action that waits for its peer ends the session after its time; one that works, or waits for us, does not."""
    waiting = fed(ASK.actions[0])
    waiting.note_traffic(100)
    assert waiting.deadline == 220
    with pytest.raises(Abort, match="input_seconds") as caught:
        waiting.check_time(220)
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    working = fed(ASK, parent("tree", "out"), action("X", {"in": "tree"}, {"out": "end"}))
    working.note_traffic(100)
    assert working.check_time(100_000) == []


async def test_an_input_that_does_not_come_is_noticed_in_time():
    """The time for inputs counts from the action on, however long a session may idle."""
    limits = SessionLimits(idle_seconds=600, input_seconds=0.2)
    server = EvergreenServer(Plugs(registry(), EvergreenConfig(limits)))
    async with grpc_serving(server) as address, grpc_session(address) as caller:
        await caller.send(actions=ASK.actions)
        status, text = await caller.failure()
        assert (status, "input_seconds" in text) == ("DEADLINE_EXCEEDED", True)


async def test_a_stalled_call_keeps_nothing():
    """A call whose client takes no byte loses its session and its action, though it is open until the client leaves.

    Until then it counts as one of its client's sessions.
    """
    cancelled = asyncio.Event()

    async def flood(call) -> None:
        try:
            while True:
                await call.outputs["out"].write(bytes(100_000))
        finally:
            cancelled.set()

    limits = SessionLimits(stall_limit=0.3, unread_bytes=100_000)
    config = EvergreenConfig(limits, max_client_sessions=1)
    server = EvergreenServer(Plugs(registry(ActionType("FLOOD", (), (Port("out"),), flood)), config))
    async with grpc_serving(server) as address:
        async with grpc_session(address) as caller:
            await caller.send(actions=[action("FLOOD", {}, {"out": "out"})])
            await asyncio.wait_for(cancelled.wait(), PATIENCE)
            await until(lambda: not server._sessions)
            assert await server.refusal("127.0.0.1") is not None
        await until(lambda: not server._lingering)
        assert await server.refusal("127.0.0.1") is None


async def test_half_closed_in_the_middle():
    """A call that half-closes with an input missing is FAILED_PRECONDITION at once."""
    server = EvergreenServer(Plugs(registry()))
    async with grpc_serving(server) as address, grpc_session(address) as caller:
        await caller.send(leaf("in", "x", continued=True), actions=ASK.actions)
        await caller.call.done_writing()
        status, text = await caller.failure()
        assert (status, "waits for node 'in'" in text) == ("FAILED_PRECONDITION", True)


async def test_a_reader_that_never_reads_is_cut_off(monkeypatch):
    """A client that takes no byte for the stall time is taken for gone; its action is cancelled.

    One that takes some in that time is not, however long a message takes.
    """
    cancelled = asyncio.Event()

    async def flood(call) -> None:
        try:
            while True:
                await call.outputs["out"].write(bytes(100_000))
        finally:
            cancelled.set()

    takes, looks, waiting_bytes = [True], [], stall._waiting_bytes

    def less_each_time(transport) -> int:
        looks.append(transport)
        return waiting_bytes(transport) - len(looks) * takes[0]

    monkeypatch.setattr(stall, "_waiting_bytes", less_each_time)
    limits = SessionLimits(stall_limit=0.05, unread_bytes=100_000)
    server = EvergreenServer(Plugs(registry(ActionType("FLOOD", (), (Port("out"),), flood)), EvergreenConfig(limits)))
    config = ServerConfig(stall_limit=0.05)
    async with listening(server, config=config) as port, dialled(port, max_queue=1) as websocket:
        await websocket.send(encode(SessionMessage(actions=(action("FLOOD", {}, {"out": "out"}),))))
        await until(lambda: len(looks) > 5)
        assert not cancelled.is_set()
        takes[0] = False
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
        websocket.transport.abort()


async def test_a_thousand_idle_sessions():
    """A thousand sessions that are cut leave no task, no session and no memory behind."""
    server = EvergreenServer(Plugs(registry(), EvergreenConfig(max_sessions=2000, max_client_sessions=2000)))
    async with listening(server) as port:
        async with dialled(port) as websocket:
            await websocket.send(encode(ASK))
            await value(websocket, "out")
        await until(lambda: not server._sessions)
        tasks = len(asyncio.all_tasks())
        gc.collect()
        objects = len(gc.get_objects())
        sockets = [await _raw(port) for _ in range(1000)]
        await until(lambda: len(server._sessions) == 1000)
        for one in sockets:
            one.close()
        await until(lambda: not server._sessions)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        del sockets, one
        gc.collect()
        assert len(gc.get_objects()) - objects < 500


async def _raw(port: int) -> socket.socket:
    """A session by a bare socket."""
    one = socket.create_connection(("127.0.0.1", port))
    one.setblocking(False)
    head = f"GET /evergreen HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(one, head.encode())
    await loop.sock_recv(one, 1000)
    return one
