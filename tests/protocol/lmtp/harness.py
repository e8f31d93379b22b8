"""A real LMTP server on a free port, and a client that speaks in frames as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection, connect

from lmtool.core.interfaces import Catalogue, Face, ModelControl, ProgressSource, TokenModel
from lmtool.net.access.asgi import Door
from lmtool.net.access.policy import AccessPolicy
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.protocol.http.errors import refused
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.plugs import Plugs, Tap
from lmtool.protocol.lmtp.server import LmtpServer
from lmtool.protocol.lmtp.watching import Traffic
from lmtool.protocol.lmtp.websocket_protocol import uvicorn_options
from lmtool.serving.listening import UnixListener

PATIENCE = 30.0
"""Seconds after which something that does not come counts as missing: generous, the machine may be busy."""


@dataclass
class Served:
    """A running server."""

    port: int
    server: LmtpServer
    logged: list[RequestLog] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"


@contextlib.asynccontextmanager
async def serving(
    model: TokenModel,
    *,
    config: ServerConfig | None = None,
    progress: ProgressSource | None = None,
    catalogue: Catalogue | None = None,
    tap: Tap | None = None,
    policy: AccessPolicy | None = None,
    control: ModelControl | None = None,
    traffic: Traffic | None = None,
    path: str | None = None,
    everybody_watches: bool = False,
) -> AsyncIterator[Served]:
    """Serve a model on a free port, or on the Unix socket `path`, in this event loop, behind every server's door."""
    logged: list[RequestLog] = []
    config = config or ServerConfig()
    server = LmtpServer(
        Plugs(model, config, progress, catalogue, logged.append, tap, control, traffic, everybody_watches)
    )
    async with listening(server, policy, config, path) as port:
        yield Served(port, server, logged)


@contextlib.asynccontextmanager
async def listening(
    face: Face, policy: AccessPolicy | None = None, config: ServerConfig | None = None, path: str | None = None
) -> AsyncIterator[int]:
    """Put a protocol on a free port, or a Unix socket, behind the door, and drain it at the end; the port, or 0."""
    options = uvicorn_options(config)
    guarded = Door(Starlette(routes=list(face.routes())), policy or AccessPolicy(), refused)
    runner = uvicorn.Server(uvicorn.Config(guarded, lifespan="off", log_level="error", **options))  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0)) if path is None else UnixListener(path)
    # Without uvicorn's main loop, which takes over signals and looks for the end only ten times a second.
    runner.config.load()
    runner.lifespan = runner.config.lifespan_class(runner.config)
    await runner.startup(sockets=[listener])
    try:
        yield listener.getsockname()[1] if path is None else 0
    finally:
        await face.drain(0)
        await runner.shutdown(sockets=[listener])


class Wire:
    """A client that sends and receives frames as they are."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, *frames: str | bytes) -> None:
        """Send frames."""
        for frame in frames:
            await self.connection.send(frame)

    async def frame(self) -> str:
        """The next frame."""
        async with asyncio.timeout(PATIENCE):
            received = await self.connection.recv()
        assert isinstance(received, str)
        return received

    async def receive(self) -> tuple[str, list[dict[str, Any]]]:
        """The next frame's command and list."""
        command, payload = split(await self.frame())
        return command, payload

    async def entries(self, command: str, count: int) -> list[dict[str, Any]]:
        """The next entries, which must all be of one command."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            received, payload = await self.receive()
            assert received == command, (received, payload)
            found += payload
        assert len(found) == count
        return found

    async def stream(self, stream_id: object) -> list[dict[str, Any]]:
        """Every entry of one stream, up to its end; nothing else may come."""
        found: list[dict[str, Any]] = []
        while not found or not ends(found[-1]):
            command, payload = await self.receive()
            assert command == "TOKEN", (command, payload)
            assert all(entry["stream_id"] == stream_id for entry in payload), payload
            found += payload
        return found

    async def streams(self, count: int) -> dict[Any, list[dict[str, Any]]]:
        """The entries of so many streams, up to the end of each."""
        found: dict[Any, list[dict[str, Any]]] = {}
        ended = 0
        while ended < count:
            command, payload = await self.receive()
            assert command == "TOKEN", (command, payload)
            for entry in payload:
                found.setdefault(entry["stream_id"], []).append(entry)
                ended += ends(entry)
        return found

    async def alive(self) -> None:
        """Check that the server still answers on this connection, with nothing sent before."""
        await self.send('MODEL_INFO {"stream_id": "alive"}')
        (entry,) = await self.entries("MSG", 1)
        assert entry["stream_id"] == "alive"
        assert "model_info" in entry


async def until(condition: Callable[[], object], turn: Callable[[], Awaitable[object]] | None = None) -> None:
    """Take turns, such as a request and its answer, or of the event loop, until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await (asyncio.sleep(0.001) if turn is None else turn())


def ends(entry: dict[str, Any]) -> bool:
    """Whether an entry is its stream's last."""
    return entry.get("finish_reason") is not None or entry.get("error") is not None


def split(frame: str) -> tuple[str, list[dict[str, Any]]]:
    """A frame's command and its list, read as strictly as JSON is defined."""
    command, _, payload = frame.partition(" ")
    entries = json.loads(payload, parse_constant=_refuse)
    assert isinstance(entries, list)
    return command, entries


def _refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is not JSON")


@contextlib.asynccontextmanager
async def wire(served: Served, **options: Any) -> AsyncIterator[Wire]:
    """A connection to a running server."""
    async with connect(served.url, compression=None, max_size=None, **options) as connection:
        yield Wire(connection)


@contextlib.asynccontextmanager
async def conversation(model: TokenModel, **options: Any) -> AsyncIterator[Wire]:
    """A connection to a server of its own."""
    async with serving(model, **options) as served, wire(served) as client:
        yield client


_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked(text: str) -> bytes:
    """A text frame of a client, under a mask of zeros."""
    data = text.encode()
    head = bytes([0x81, 0x80 | len(data)]) if len(data) < 126 else bytes([0x81, 0xFE]) + len(data).to_bytes(2, "big")
    return head + bytes(4) + data


async def silent_client(served: Served, *frames: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection that has sent frames and will never answer a ping."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(_HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"".join(masked(frame) for frame in frames))
    return reader, writer
