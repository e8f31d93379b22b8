"""Evergreen over WebSocket at `/evergreen`: text frames are proto-JSON, binary ones protobuf; an abort is 4400."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import lmtool
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.evergreen.actions import ActionCall, ActionType, Port, Registry
from lmtool.protocol.evergreen.codec import decode, encode, encode_json
from lmtool.protocol.evergreen.config import EvergreenConfig, SessionLimits
from lmtool.protocol.evergreen.messages import SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from tests.lab.frames import server
from tests.protocol.evergreen.harness import action, leaf, parent, registry
from tests.protocol.lmtp.harness import PATIENCE, listening, until

ASK = SessionMessage((leaf("in", "jam"),), (action("UPPER", {"text": "in"}, {"text": "out"}),))


@contextlib.asynccontextmanager
async def dialled(port: int, **options: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket to `/evergreen`."""
    async with connect(f"ws://127.0.0.1:{port}/evergreen", compression=None, **options) as websocket:
        yield websocket


async def value(websocket: ClientConnection, node_id: str) -> bytes:
    """A leaf's bytes, once it is closed."""
    pieces: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            for fragment in decode(await websocket.recv()).node_fragments:
                if fragment.id == node_id:
                    chunk = fragment.chunk_fragment
                    pieces.append((chunk.data or b"") if chunk is not None else b"")
                    if not fragment.continued:
                        return b"".join(pieces)


async def closing(websocket: ClientConnection) -> tuple[int, str]:
    """The code and reason that the server closes with."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await websocket.recv()
    return websocket.close_code or 0, websocket.close_reason or ""


@pytest.mark.parametrize("kind", [str, bytes])
async def test_answers_come_in_the_clients_kind(kind):
    """Text is answered by text, binary by binary."""
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, dialled(port) as websocket:
        await websocket.send(encode_json(ASK) if kind is str else encode(ASK))
        frame = await websocket.recv()
        assert isinstance(frame, kind)
        assert decode(frame).node_fragments[0].chunk_fragment.data == b"JAM"


async def test_the_typescript_clients_way():
    """Action first, then a fragment a message with metadata on each, then an empty final one with another type."""
    server = EvergreenServer(Plugs(registry()))
    said = {"mimetype": "text/plain"}
    async with listening(server) as port, dialled(port) as websocket:
        named = {"inputs": [{"name": "text", "id": "1"}], "outputs": [{"name": "text", "id": "2"}]}
        await websocket.send(json.dumps({"actions": [{"name": "UPPER", **named}]}))
        for fragment in (
            {"continued": True, "chunkFragment": {"metadata": said, "data": "amFt"}},
            {"seq": 1, "continued": True, "chunkFragment": {"metadata": said, "data": "IQ=="}},
            {"seq": 2, "chunkFragment": {"metadata": {"mimetype": "application/octet-stream"}}},
        ):
            await websocket.send(json.dumps({"nodeFragments": [{"id": "1", **fragment}]}))
        assert await value(websocket, "2") == b"JAM!"


@pytest.mark.parametrize("frame", ["{", "[]", b"\xff\xff"], ids=repr)
async def test_what_is_no_message_closes_its_own_session(frame):
    """Malformed frames close with 4400 and `STATUS_NAME: text`; another session goes on (rule 41)."""
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, dialled(port) as other, dialled(port) as websocket:
        await websocket.send(frame)
        code, reason = await closing(websocket)
        assert code == 4400
        assert reason.startswith("INVALID_ARGUMENT: ")
        await other.send(encode(ASK))
        assert await value(other, "out") == b"JAM"


async def test_a_reason_fits_into_a_close_frame():
    """A reason has at most 123 bytes of UTF-8, whole characters only."""
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, dialled(port) as websocket:
        await websocket.send(encode(SessionMessage(actions=(action("Ä" * 100, {}, {}),))))
        code, reason = await closing(websocket)
        assert (code, reason.startswith("UNIMPLEMENTED: ")) == (4400, True)
        assert 120 < len(reason.encode()) <= 123


async def test_the_door():
    """A key and a page's origin are checked before a session is opened."""
    server = EvergreenServer(Plugs(registry()))
    async with listening(server, AccessPolicy("right")) as port:
        for headers, status in (({}, 401), ({"Origin": "https://example.org", "Authorization": "Bearer right"}, 403)):
            with pytest.raises(InvalidStatus) as refused:
                async with dialled(port, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
        async with dialled(port, additional_headers={"Authorization": "Bearer right"}) as websocket:
            await websocket.send(encode(ASK))
            assert await value(websocket, "out") == b"JAM"


@pytest.mark.parametrize("config", [EvergreenConfig(max_sessions=1), EvergreenConfig(max_client_sessions=1)])
async def test_too_many_sessions(config):
    """One session more than the limit is refused with status 503 and the limit's name; when one ends, there is room."""
    server = EvergreenServer(Plugs(registry(), config))
    async with listening(server) as port:
        async with dialled(port):
            with pytest.raises(InvalidStatus) as refused:
                async with dialled(port):
                    pass
            assert refused.value.response.status_code == 503
            assert b"RESOURCE_EXHAUSTED: 1 " in refused.value.response.body
        await until(lambda: not server._sessions)
        async with dialled(port) as websocket:
            await websocket.send(encode(ASK))
            assert await value(websocket, "out") == b"JAM"


async def test_unread_output_pauses_its_action():
    """An action whose output is not read pauses at the limit, and goes on when it is; others go on meanwhile."""
    written = 0

    async def flood(call: ActionCall) -> None:
        nonlocal written
        for _ in range(200):
            await call.outputs["out"].write(b"x" * 100_000)
            written += 1

    limits = SessionLimits(unread_bytes=200_000)
    server = EvergreenServer(Plugs(registry(ActionType("FLOOD", (), (Port("out"),), flood)), EvergreenConfig(limits)))
    async with listening(server) as port, dialled(port, max_queue=1) as websocket, dialled(port) as other:
        await websocket.send(encode(SessionMessage(actions=(action("FLOOD", {}, {"out": "out"}),))))
        before, rounds = -1, 0
        while before != written or rounds < 20:  # until it stands still while another session makes whole rounds
            before, rounds = written, rounds + 1
            into, out = f"in{rounds}", f"out{rounds}"
            ask = SessionMessage((leaf(into, "jam"),), (action("UPPER", {"text": into}, {"text": out}),))
            await other.send(encode(ask))
            assert await value(other, out) == b"JAM"
        assert written < 200
        assert len(await value(websocket, "out")) == 20_000_000


async def test_a_client_that_vanishes_cancels_its_actions():
    """A connection that is cut cancels its handlers and leaves no task (rule 40)."""
    cancelled = asyncio.Event()

    async def wait(call: ActionCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = EvergreenServer(Plugs(registry(ActionType("WAIT", (), (Port("out"),), wait))))
    async with listening(server) as port:
        async with dialled(port) as websocket:
            await websocket.send(encode(SessionMessage(actions=(action("WAIT", {}, {"out": "out"}),))))
            await until(lambda: server.running)
            websocket.transport.abort()
        await asyncio.wait_for(cancelled.wait(), PATIENCE)


async def test_draining():
    """A server that drains lets actions end, refuses new ones, and closes its sessions with UNAVAILABLE."""
    go = asyncio.Event()

    async def wait(call: ActionCall) -> None:
        await go.wait()
        await call.outputs["out"].write("done")

    server = EvergreenServer(Plugs(registry(ActionType("WAIT", (), (Port("out"),), wait))))
    async with listening(server) as port, dialled(port) as websocket, dialled(port) as other:
        await websocket.send(encode(SessionMessage(actions=(action("WAIT", {}, {"out": "out"}),))))
        await until(lambda: server.running)
        draining = asyncio.create_task(server.drain(PATIENCE))
        await other.send(encode(ASK))
        assert await closing(other) == (4400, "UNAVAILABLE: the server is shutting down; connect again when it is back")
        with pytest.raises(InvalidStatus):
            async with dialled(port):
                pass
        go.set()
        assert await value(websocket, "out") == b"done"
        assert (await closing(websocket))[0] == 4400
        assert await draining


async def test_metrics_and_log():
    """Sessions and actions are counted, and each action that ended is logged without its contents."""
    logged = []
    server = EvergreenServer(Plugs(registry(), log=logged.append))
    async with listening(server) as port:
        async with dialled(port) as websocket:
            await websocket.send(encode(ASK))
            assert await value(websocket, "out") == b"JAM"
            samples = {family.name: family.samples for family in server.metrics()}
            assert samples["evergreen_sessions"] == (("", 1),)
        await until(lambda: {f.name: f.samples for f in server.metrics()}["evergreen_sessions"] == (("", 0),))
        assert {f.name: f.samples for f in server.metrics()}["evergreen_sessions_total"] == [('{status="OK"}', 1)]
    [entry] = logged
    assert (entry.name, entry.output_id, entry.status.name, entry.error) == ("UPPER", "out", "OK", None)


async def test_a_tree_comes_back_byte_for_byte():
    """A page of text, an image and a video of 1,000 frames, out of order and in pieces, comes back as it was."""
    frames = [bytes([at % 256]) * (at % 50) for at in range(1000)]
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, dialled(port, max_queue=None) as websocket:
        await websocket.send(encode(SessionMessage(actions=(action("COPY", {"node": "page"}, {"copy": "copy"}),))))
        sent = [leaf(f"frame{at}", frame, mimetype="image/png") for at, frame in enumerate(frames)]
        for start in range(0, 1000, 100):
            await websocket.send(encode(SessionMessage(tuple(sent[start : start + 100][::-1]))))
        video = [
            parent(
                "video", *(f"frame{at}" for at in range(start, start + 100)), seq=start // 100, continued=start < 900
            )
            for start in range(0, 1000, 100)
        ]
        await websocket.send(encode(SessionMessage((parent("page", "text", "image", "video"), *video[::-1]))))
        await websocket.send(encode(SessionMessage((leaf("image", b"\x89PNG", mimetype="image/png"),))))
        await websocket.send(encode(SessionMessage((leaf("text", "words"),))))
        order: list[str] = []
        values: dict[str, bytes] = {}
        types: dict[str, str] = {}
        closed: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            while "copy" not in closed or not closed.issuperset(order):
                for fragment in decode(await websocket.recv()).node_fragments:
                    if fragment.id == "copy":
                        order += fragment.child_ids
                    chunk = fragment.chunk_fragment
                    if chunk is not None:
                        values[fragment.id] = values.get(fragment.id, b"") + (chunk.data or b"")
                        if chunk.metadata is not None:
                            types[fragment.id] = chunk.metadata.mimetype
                    if not fragment.continued:
                        closed.add(fragment.id)
        assert [values.get(each, b"") for each in order] == [b"words", b"\x89PNG", *frames]
        assert [types.get(each) for each in order[:3]] == ["text/plain", "image/png", "image/png"]


async def test_what_sessions_need_is_imported_with_the_first(tmp_path):
    """A server that nobody asks for a session has no protobuf in memory; streams go on while it is imported."""
    async with server(["lmtool-tiny"]) as (url, process):

        def loaded() -> bool:
            return "google/_upb" in Path(f"/proc/{process}/maps").read_text()

        async with lmtool.connect(url) as client:
            assert [piece async for piece in client.generate("Once", max_tokens=2)]
        assert not loaded()
        async with lmtool.session(url) as session:
            assert [piece async for piece in session.generate("Once", max_tokens=2)]
        assert loaded()


async def test_limits_hold_while_the_first_session_waits():
    """However many come while what they need is imported, no more sessions are opened than may be."""
    begun = threading.Event()

    def slow() -> Registry:
        begun.wait(PATIENCE)
        return registry()

    server = EvergreenServer(Plugs(slow, EvergreenConfig(max_sessions=2)))
    async with listening(server) as port:
        opening = [asyncio.create_task(connect(f"ws://127.0.0.1:{port}/evergreen").__aenter__()) for _ in range(5)]
        await asyncio.sleep(0)
        begun.set()
        ends = await asyncio.gather(*opening, return_exceptions=True)
        assert sorted(type(end) is InvalidStatus for end in ends) == [False, False, True, True, True]
        for end in ends:
            if isinstance(end, ClientConnection):
                await end.close()
