"""A client that reads nothing is paused and, after `--stall-limit`, cut alone, over every wire of a port."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.gateway.pools.config_reader import parse
from lmtool.net.access.stall import StallTimer
from lmtool.protocol.evergreen.codec import encode_json, pack_struct
from lmtool.protocol.evergreen.messages import SessionMessage, TargetSpec
from lmtool.protocol.evergreen.server import EvergreenServer
from lmtool.protocol.http import http_protocol
from lmtool.protocol.lmtp import websocket_protocol
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.config import ListenConfig, ModelsConfig, PoolsConfig, ServiceConfig
from lmtool.serving.listening import bind
from lmtool.serving.service import Service
from tests.protocol.evergreen.harness import action, leaf
from tests.protocol.lmtp.harness import PATIENCE, masked, until
from tests.serving.keyed_wires import MODEL, POOLS

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 0.5
SMALL = 1000
"""Bytes of a socket's buffers (a system takes some more), so that a client that reads nothing is noticed soon."""
TOKENS = 480


@dataclass
class Port:
    """A running service, its port and its Unix socket."""

    service: Service
    port: int
    path: str
    others: int = 0
    """Connections that are always open: of a balancer in front of it."""

    @property
    def connections(self) -> int:
        """Those of tests that are open, whatever they carry."""
        assert self.service._http_server is not None
        return len(self.service._http_server.server_state.connections) - self.others


async def listening(config: ServiceConfig, path: Path) -> Port:
    """A service of this configuration that has its model."""
    service = Service(config)
    sockets = bind(ListenConfig(port=0))
    at_path = bind(ListenConfig(unix=str(path)))
    for one in (*sockets, *at_path):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    service.listen([*sockets, *at_path])
    await service.ready(lambda _: None)
    return Port(service, sockets[0].getsockname()[1], str(path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ports(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Port]]:
    """A server with a pool over its model, and a balancer in front of it."""
    folder, config = tmp_path_factory.mktemp("sockets"), ServerConfig(stall_limit=LIMIT)
    models = ServiceConfig(ModelsConfig(MODEL), server=config, pools=PoolsConfig(parse(POOLS)))
    with pytest.MonkeyPatch.context() as patch:
        for module in (http_protocol, websocket_protocol):
            patch.setattr(module, "StallTimer", narrow)
        own = await listening(models, folder / "own")
        lengthen(own.service)
        balancing = ServiceConfig(server=config, workers=(f"unix:{own.path}",), balances=True)
        balancer = await listening(balancing, folder / "balancer")
        own.others = own.connections
        yield {"serve": own, "balance": balancer}
        await balancer.service.close()
        await own.service.close()


def lengthen(service: Service) -> None:
    """Let every answer be long, whatever its API can ask for."""
    models: Any = service._models
    model = models._slots[0].model
    submit = model.submit

    def submit_longer(request: GenerateRequest, sink: Sink) -> StreamHandle:
        longer = replace(request.sampling, ignore_eos=True, max_tokens=max(request.sampling.max_tokens, TOKENS))
        handle: StreamHandle = submit(replace(request, sampling=longer), sink)
        return handle

    model.submit = submit_longer


def narrow(transport: asyncio.WriteTransport, *limit: float) -> StallTimer:
    """A timer of a transport that keeps little, so that few tokens are enough."""
    transport.set_write_buffer_limits(SMALL)
    return StallTimer(transport, *limit)


Request = tuple[bytes, bytes]
"""What a client sends, and what it sends once that was answered."""


def post(path: str, body: dict[str, Any]) -> Request:
    """An HTTP request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, b""


def frame(path: str, text: str) -> Request:
    """A WebSocket's handshake, and a frame."""
    key = base64.b64encode(bytes(16)).decode()
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    return head.encode(), masked(text)


MESSAGES = [{"role": "user", "content": "Tell me of the sea"}]
LONG = {"max_tokens": TOKENS, "stream": True}
GENERATE = {
    "stream_id": 1,
    "model": MODEL,
    "prompt": [1, 40],
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "top_logprobs": 200,
}
UNIFIED = {"id": "1", "message": MESSAGES[0]}
COMPLETION = {"model": MODEL, "prompt": "Once", "logprobs": 5, "ignore_eos": True, **LONG}
ACTION: dict[str, Any] = {"configs": (pack_struct({"top_logprobs": 20}),), "target_spec": TargetSpec(MODEL)}
SESSION = SessionMessage((leaf("q", "Once"),), (action("GENERATE", {"prompt": "q"}, {"logprobs": "a"}, **ACTION),))
REQUESTS = {
    "LMTP": frame("/", f"GENERATE {json.dumps(GENERATE)}"),
    "chat completions": post("/v1/chat/completions", {"messages": MESSAGES, **LONG}),
    "completions": post("/v1/completions", COMPLETION),
    "whole": post("/v1/completions", {**COMPLETION, "stream": False}),
    "responses": post("/v1/responses", {"input": "Tell me", "stream": True}),
    "messages": post("/v1/messages", {"messages": MESSAGES, **LONG}),
    "unified": post("/v1/language/own/chat", {"message": MESSAGES[0], "stream": True}),
    "unified over WebSocket": frame("/v1/language/own/chatStream", json.dumps(UNIFIED)),
    "Evergreen": frame("/evergreen", encode_json(SESSION)),
}
"""Each has an answer of more bytes than the system takes on its own."""
CASES = [("serve", wire) for wire in REQUESTS] + [("balance", "LMTP"), ("balance", "completions")]


async def unread(address: int | str, request: Request) -> socket.socket:
    """A client that has sent a request and reads nothing of what is streamed."""
    client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, address if isinstance(address, str) else ("127.0.0.1", address))
    await loop.sock_sendall(client, request[0])
    if request[1]:
        assert b"101" in await loop.sock_recv(client, 1000)
        await loop.sock_sendall(client, request[1])
    return client


async def fast(port: Port) -> list[Any]:
    """A stream of somebody else."""
    async with LmtpClient(f"ws://127.0.0.1:{port.port}/") as client:
        request = GenerateRequest("fast", (1, 40, 41), SamplingParams(max_tokens=TOKENS, ignore_eos=True))
        outputs = [output async for output in stream(client, request)]
    return [(output.token, output.logprob) for output in outputs]


@pytest.mark.parametrize(("command", "wire"), CASES)
async def test_cut_alone(ports, command, wire) -> None:
    """Who takes nothing for the time is cut; a stream beside it is what it is alone."""
    port = ports[command]
    alone = await fast(port)
    await until(lambda: port.connections == 0)
    with await unread(port.port, REQUESTS[wire]) as client:
        await until(lambda: port.service.streams == 1)
        assert await fast(port) == alone
        await until(lambda: port.connections == 0)
        await until(lambda: port.service.streams == 0)
        assert not (await rest(client)).endswith(b"0\r\n\r\n")


async def rest(client: socket.socket) -> bytes:
    """What is left of a connection that is closed."""
    received, loop = b"", asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        while data := await loop.sock_recv(client, 1 << 16):
            received += data
    return received


async def test_over_a_unix_socket(ports) -> None:
    """As over a port."""
    port = ports["serve"]
    with await unread(port.path, REQUESTS["LMTP"]):
        await until(lambda: port.connections == 1)
        await until(lambda: port.connections == 0)


async def test_paused_until_then(ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream brings nothing more meanwhile, and goes on where its client reads again."""
    port = ports["serve"]
    engine = port.service._models._slots[0].model._inner
    with await unread(port.port, REQUESTS["LMTP"]) as client:
        await until(lambda: any(one.sequence.paused for one in engine._streams.values()))
        (sent,) = (one.sent for one in engine._streams.values())
        assert sent < TOKENS
        received, loop = b"", asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            while b'"finish_reason":"length"' not in received[-9000:]:
                received += await loop.sock_recv(client, 1 << 16)
        assert received.count(b'"logprob"') == TOKENS


async def test_each_wire_has_the_limit(ports) -> None:
    """Evergreen's sessions, over WebSocket and gRPC, have the server's."""
    sessions = next(face for face in ports["serve"].service.faces if isinstance(face, EvergreenServer))
    assert sessions.plugs.config.limits.stall_limit == LIMIT


async def test_over_a_pipe() -> None:
    """A parent that reads nothing for the time loses its server, which ends by itself."""
    command = [sys.executable, "-m", "lmtool", "serve", "--stdio", "--stall-limit", str(LIMIT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"GENERATE {json.dumps(GENERATE)}\n".encode())
        server.stdin.flush()
        try:
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()
        assert len(os.read(server.stdout.fileno(), 1 << 20)) > 1000, "until the pipe was full it was answered"
