"""A service speaks Evergreen on its own port and over gRPC, on the models that it serves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lmtool.core.errors import ResourceError
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.protocol.evergreen.codec import encode, encode_json, pack_struct
from lmtool.protocol.evergreen.messages import SessionMessage
from lmtool.serving.config import EvergreenOptions, ListenConfig, ServiceConfig
from lmtool.serving.listening import bind, url
from lmtool.serving.service import Service
from lmtool.settings.terminal import Output
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Message
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import record_session
from tests.protocol.evergreen.harness import action, grpc_session, leaf
from tests.protocol.evergreen.test_websocket import closing, value
from tests.protocol.lmtp.harness import until

ASK = SessionMessage(
    (leaf("question", "The capital of France is"),),
    (action("GENERATE", {"prompt": "question"}, {"response": "answer"}, configs=(pack_struct({"max_tokens": 4}),)),),
)


async def test_both_wires_answer_and_count():
    """GENERATE over WebSocket and over gRPC gives the same text; both are logged and counted like other requests."""
    logged: list[RequestLog] = []
    service = Service(ServiceConfig(), logged.append)
    listen = ListenConfig(port=0)
    sockets = bind(listen)
    service.listen(sockets)
    port = await service.listen_grpc("127.0.0.1", 0)
    try:
        await service.ready(lambda _: None)
        async with connect(f"{url(listen, sockets)}evergreen") as websocket:
            await websocket.send(encode(ASK))
            text = await value(websocket, "answer")
        async with grpc_session(f"127.0.0.1:{port}") as caller:
            await caller.send(*ASK.node_fragments, actions=ASK.actions)
            assert await caller.value("answer") == text != b""
        await until(lambda: len(logged) == 2)
        assert [(entry.command, entry.stream_id, entry.end) for entry in logged] == [
            ("GENERATE", '"answer"', "length")
        ] * 2
        assert service.health.requests["GENERATE", "length"] == 2
    finally:
        await service.close()


def test_without_the_packages_of_grpc(monkeypatch: pytest.MonkeyPatch):
    """`--grpc-port` without grpcio is a missing resource, with the line that installs it."""
    monkeypatch.setattr("lmtool.serving.config.find_spec", lambda name: None)
    assert importlib.util.find_spec("grpc") is not None
    EvergreenOptions().check()
    with pytest.raises(ResourceError, match="grpcio") as caught:
        EvergreenOptions(grpc_port=0).check()
    assert caught.value.hints == ("install it:  pip install 'lmtool[grpc]'",)
    assert caught.value.exit_code == 8


async def test_a_recording_keeps_each_message(tmp_path: Path):
    """`--record` keeps messages as JSON whatever carried them, and why a session ended."""
    file = tmp_path / "a.lmtp.jsonl"
    out = Output(color=False, note_color=False, terminal=False, quiet=True)
    async with record_session(out, str(file), "server", Header()) as tap:
        service = Service(ServiceConfig(), tap=tap)
        listen = ListenConfig(port=0)
        sockets = bind(listen)
        service.listen(sockets)
        port = await service.listen_grpc("127.0.0.1", 0)
        wrong = SessionMessage(ASK.node_fragments, (action("NONE", {}, {"out": "answer"}),))
        async with connect(f"{url(listen, sockets)}evergreen") as websocket:
            await websocket.send(encode_json(wrong))
            assert (await closing(websocket))[0] == 4400
        async with grpc_session(f"127.0.0.1:{port}") as caller:
            await caller.send(*wrong.node_fragments, actions=wrong.actions)
            await caller.failure()
        await service.close()
    events = list(TraceReader(file))
    expected = json.loads(encode_json(wrong))
    assert [each.value for each in events if isinstance(each, Message)] == [expected, expected]
    closes = [each for each in events if isinstance(each, Close)]
    assert [(each.connection, each.code) for each in closes] == [(1, 4400), (2, 4400)]
    assert closes[0].reason.startswith("UNIMPLEMENTED: ")
