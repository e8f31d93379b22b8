"""Lines for machines about requests of every wire: who, how much, how long, in which trace; never what."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind
from websockets.asyncio.client import connect

import lmtool
from lmtool.core.errors import LmtoolError
from lmtool.net.telemetry import refusals
from tests.net.telemetry.in_memory_spans import in_memory
from tests.net.telemetry.test_trace_context import GOOD
from tests.protocol.lmtp.harness import PATIENCE, until
from tests.serving.keyed_wires import MODEL, POOL, WIRES, KeyedServer, http, keyed_server
from tests.serving.test_api_keys import KEY, key

SECRET = f"{KEY}-alice"
CONTENT = "canary-content"
TALK = [{"role": "user", "content": CONTENT}]
BODIES: list[tuple[str, Any]] = [
    ("/v1/completions", {"model": MODEL, "prompt": CONTENT, "max_tokens": 2}),
    ("/v1/completions", {"model": MODEL, "prompt": CONTENT, "max_tokens": CONTENT}),
    ("/v1/completions", {"model": CONTENT, "prompt": CONTENT}),
    ("/v1/chat/completions", {"model": MODEL, "messages": TALK, "max_tokens": 2, "stop": [CONTENT]}),
    ("/v1/chat/completions", {"model": MODEL, "messages": TALK, "regex": f"({CONTENT}"}),
    ("/v1/messages", {"model": MODEL, "messages": TALK, "max_tokens": 2, CONTENT: 1}),
    ("/v1/responses", {"model": MODEL, "input": CONTENT, "max_output_tokens": 16}),
    (f"/v1/language/{POOL}/chat", {"message": TALK[0]}),
    (f"/v1/language/{POOL}/chat", {"message": CONTENT}),
]
FRAMES = [
    f'GENERATE {{"prompt": "{CONTENT}", "model": "{MODEL}", "stream_id": 1, "max_tokens": 2, "lmtp": 1}}',
    f'GENERATE {{"prompt": {{"{CONTENT}": 1}}, "stream_id": 2}}',
    f'GENERATE {{"prompt": [1], "model": "{CONTENT}", "stream_id": 3}}',
    f'GENERATE {{"prompt": [1], "model": "{MODEL}", "regex": "({CONTENT}", "stream_id": 4}}',
    f'SCORE {{"prompt": "{CONTENT}", "scored": "{CONTENT}", "model": "{MODEL}", "stream_id": 5}}',
    f'GENERATE {{"prompt": [1], "model": "{MODEL}", "{CONTENT}": 1, "stream_id": 6, "max_tokens": 1}}',
    f"{CONTENT} {{}}",
    f'GENERATE {{"prompt": "{CONTENT}',
]


async def _lmtp(server: KeyedServer) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "traceparent": GOOD}
    async with connect(server.url, additional_headers=headers) as socket:
        for frame in (*FRAMES, f'MODEL_INFO {{"stream_id": 9, "model": "{MODEL}"}}'):
            await socket.send(frame)
        async with asyncio.timeout(PATIENCE):
            while '"stream_id":9' not in str(await socket.recv()).replace(" ", ""):
                """Whatever else is answered."""
        await until(lambda: not server.service.streams)


async def _evergreen(server: KeyedServer) -> None:
    async with lmtool.session(server.url, api_key=SECRET) as session:
        assert [piece async for piece in session.generate(CONTENT, model=MODEL, max_tokens=2)]
    with pytest.raises(LmtoolError):
        async with lmtool.session(server.url, api_key=SECRET) as session:
            assert [piece async for piece in session.generate(CONTENT, model=CONTENT, max_tokens=2)]


async def test_neither_keys_nor_content(tmp_path: Path) -> None:
    """Requests that are answered, refused, and no requests at all, on each wire; as little in `/metrics` and spans."""
    lines: list[str] = []
    tracer, spans = in_memory()
    async with keyed_server(key("alice"), tmp_path, lines, tracer) as server:
        for path, body in BODIES:
            await http(server, SECRET, path, body)
        await _lmtp(server)
        await _evergreen(server)
        metrics = (await http(server, SECRET, "/metrics")).text
    exported = [span.to_json() for span in spans.get_finished_spans()]
    assert len(exported) >= len(BODIES)
    assert [one for one in exported if CONTENT in one or KEY in one] == []
    assert len(lines) >= len(BODIES) + len(FRAMES) + 2
    for line in lines:
        assert CONTENT not in line
        assert KEY not in line
    assert CONTENT not in metrics
    assert KEY not in metrics


PROTOCOLS = {name: "websocket" for name in WIRES if "LMTP" in name or "WebSocket" in name or name == "Evergreen"}
PROTOCOLS["Evergreen over gRPC"] = "grpc"


async def refused(server: KeyedServer) -> None:
    """Ask over every wire with a key that is none; `/metrics` counts them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusals, "INTERVAL", 0.0)
        for name, wire in WIRES.items():
            assert (await wire(server, f"{KEY}-nobody", MODEL)).status in {400, 401}, name
    metrics = (await http(server, SECRET, "/metrics")).text
    assert f'lmtool_requests_refused_total{{reason="invalid_api_key"}} {len(WIRES)}\n' in metrics


async def test_every_wire_logs_its_requests_with_their_key_and_trace(tmp_path: Path) -> None:
    """HTTP once a request with the trace of its headers, connections once a stream with that of their handshake.

    Each is a span as well; a pool's has the call of its member below it. What the door refuses is told and counted.
    """
    lines: list[str] = []
    tracer, exporter = in_memory()
    async with keyed_server(key("alice", "admin = true"), tmp_path, lines, tracer) as server:
        for name, wire in WIRES.items():
            before = len(lines)
            exporter.clear()
            assert (await wire(server, SECRET, MODEL)).status == 200, name
            await until(lambda before=before: len(lines) > before)
            entries = [json.loads(line) for line in lines[before:]]
            asked = [one for one in entries if one.get("command", "GENERATE") == "GENERATE"]
            assert len(asked) == 1, (name, entries)
            [entry] = asked
            assert (entry["key"], entry["end"] in {"length", "stop"}, entry["output_tokens"] > 0) == (
                *("alice", True),
                True,
            ), name
            assert 0 < entry["ttft"] <= entry["seconds"], name
            assert entry["model"] == (POOL if "unified" in name else MODEL), name
            assert ("path" in entry) == (entry["event"] == "answered"), name
            *calls, stream = exporter.get_finished_spans()
            assert (stream.kind, stream.parent) == (SpanKind.SERVER, None), name
            assert stream.attributes["lmtool.key"] == "alice", name
            assert stream.attributes["gen_ai.response.model"] == entry["model"], name
            assert stream.attributes["gen_ai.usage.output_tokens"] == entry["output_tokens"], name
            assert [one.parent.span_id for one in calls] == [stream.context.span_id] * ("unified" in name), name
        lines.clear()
        await refused(server)
        assert [json.loads(line)["protocol"] for line in lines] == [PROTOCOLS.get(name, "http") for name in WIRES]
        assert [line for line in lines if KEY in line] == []
        lines.clear()
        exporter.clear()
        await http(server, SECRET, *BODIES[0], headers={"traceparent": GOOD})
        await _lmtp(server)
        spans = exporter.get_finished_spans()
    assert len(spans) > 3
    assert {f"00-{one.context.trace_id:032x}-{one.parent.span_id:016x}-01" for one in spans} == {GOOD}
    found = [json.loads(line) for line in lines]
    assert len(found) > len(FRAMES)
    assert {entry["traceparent"] for entry in found} == {GOOD}
