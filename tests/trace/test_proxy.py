"""The recording proxy between real clients and real servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request as Handshake
from websockets.http11 import Response as Answer

from lmtool.errors import UsageError
from lmtool.trace.events import Close, Drop, Event, Frame, Open, Piece, Request, Response
from lmtool.trace.proxy import Proxy, Target, parse_target

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Running:
    """A proxy, where it is, and what it has told."""

    port: int
    proxy: Proxy
    events: list[Event] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    async def told(self, kind: type[Event]) -> Event:
        """Wait for an event of this kind."""
        async with asyncio.timeout(30):
            while True:
                for event in self.events:
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.002)

    @property
    def wires(self) -> list[tuple[str, str | bytes]]:
        """Direction and message of all frames."""
        return [(event.direction, event.wire()) for event in self.events if isinstance(event, Frame)]


@contextlib.asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Running]:
    """A proxy in front of a server."""
    events: list[Event] = []
    warnings: list[str] = []

    def tell(_number: int, some: Iterable[Event]) -> None:
        events.extend(some)

    proxy = Proxy(parse_target(url), tell, warnings.append, time.monotonic)
    listening = socket.create_server(("127.0.0.1", 0))
    await proxy.listen([listening])
    try:
        yield Running(listening.getsockname()[1], proxy, events, warnings)
    finally:
        await proxy.close()


async def echo(connection: ServerConnection) -> None:
    """Answer each message with itself."""
    with contextlib.suppress(ConnectionClosed):
        async for message in connection:
            await connection.send(message)


@contextlib.asynccontextmanager
async def raw_server(handler: Handler) -> AsyncIterator[int]:
    """A server of bytes; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_messages_pass_and_are_told(compression: str | None) -> None:
    """Text, binary, large and empty messages arrive as they were sent, and are recorded in both directions."""
    messages: list[str | bytes] = ['GENERATE {"stream_id": 1}', b"\x00\xff", "é🙂" * 50_000, ""]
    async with serve(echo, "127.0.0.1", 0) as server, proxy_to(f"127.0.0.1:{_port(server)}") as running:
        async with connect(f"ws://127.0.0.1:{running.port}/", compression=compression) as client:
            for message in messages:
                await client.send(message)
                assert await client.recv() == message
        await running.told(Close)
    assert running.wires == [pair for message in messages for pair in ((">", message), ("<", message))]
    opened = running.events[0]
    assert isinstance(opened, Open)
    assert opened.facts["path"] == "/"
    assert running.events[-1] == Close(running.events[-1].time, 1, "client", 1000, "")


def _port(server: object) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])  # type: ignore[attr-defined]


async def test_close_codes_and_pings_pass() -> None:
    """A server's close code reaches the client; a ping is answered by the peer, not by the proxy."""

    async def refuse(connection: ServerConnection) -> None:
        await connection.recv()
        await (await connection.ping())
        await connection.close(4321, "had enough")

    async with serve(refuse, "127.0.0.1", 0) as server, proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running:
        async with connect(f"ws://127.0.0.1:{running.port}/") as client:
            await (await client.ping())
            await client.send("go")
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 4321
        closed = await running.told(Close)
    assert closed == Close(closed.time, 1, "server", 4321, "had enough")


async def test_refused_upgrades_pass() -> None:
    """Status and body of a refusal reach the client, and the trace."""

    def refuse(connection: ServerConnection, _request: Handshake) -> Answer:
        return connection.respond(403, "not you\n")

    async with (
        serve(echo, "127.0.0.1", 0, process_request=refuse) as server,
        proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running,
    ):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{running.port}/")
        assert refused.value.response.status_code == 403
        assert refused.value.response.body == b"not you\n"
        await running.told(Close)
    response = next(event for event in running.events if isinstance(event, Response))
    assert response.status == 403
    assert [event.wire() for event in running.events if isinstance(event, Piece)] == [b"not you\n"]


async def test_http_streams_pass_as_they_come() -> None:
    """Each event of a stream arrives before the next one is sent; the server sees its own name and path."""
    seen: list[bytes] = []
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head + await reader.readexactly(8))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(b'data: {"a": 1}\n\n')
        await go_on.wait()
        writer.write(b"data: [DONE]\n\n")

    async with raw_server(stream) as port, proxy_to(f"http://127.0.0.1:{port}/v1") as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = b'{"b": 2}'
        writer.write(b"POST /chat/completions HTTP/1.1\r\nHost: proxy\r\nContent-Length: 8\r\n\r\n" + body)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"\n\n") == b'data: {"a": 1}\n\n'
        go_on.set()
        assert await reader.read() == b"data: [DONE]\n\n"
        writer.close()
        await running.told(Close)
    assert seen[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port)
    assert seen[0].endswith(body)
    assert [e.wire() for e in running.events if isinstance(e, Piece)] == [b'data: {"a": 1}\n\n', b"data: [DONE]\n\n"]
    assert next(e.path for e in running.events if isinstance(e, Request)) == "/chat/completions"


async def test_a_server_that_is_not_there_is_told() -> None:
    """The client gets 502 with a sentence; a warning says it too."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    async with proxy_to(f"ws://127.0.0.1:{port}/") as running:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{running.port}/")
        assert refused.value.response.status_code == 502
        assert b"no connection to ws://127.0.0.1" in (refused.value.response.body or b"")
    assert "no connection to" in running.warnings[0]


async def test_a_vanished_client_is_passed_on() -> None:
    """A client that goes without a word: the server's connection ends too, and the trace says who it was."""
    gone = asyncio.Event()

    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()
        gone.set()

    async with serve(wait, "127.0.0.1", 0) as server, proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running:
        client = await connect(f"ws://127.0.0.1:{running.port}/")
        client.transport.abort()
        async with asyncio.timeout(30):
            await gone.wait()
        dropped = await running.told(Drop)
    assert isinstance(dropped, Drop)
    assert dropped.facts == {"by": "client"}


async def test_a_vanished_server_is_passed_on() -> None:
    """A server that dies: the client's connection ends at once, and everything received before is recorded."""

    async def die(connection: ServerConnection) -> None:
        await connection.send("last words")
        connection.transport.abort()

    async with serve(die, "127.0.0.1", 0) as server, proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running:
        async with connect(f"ws://127.0.0.1:{running.port}/") as client:
            with contextlib.suppress(ConnectionClosed):
                assert await client.recv() == "last words"
                await client.recv()
        dropped = await running.told(Drop)
    assert isinstance(dropped, Drop)
    assert dropped.facts == {"by": "server"}


@pytest.mark.parametrize("reader_is", ["client", "server"])
async def test_a_slow_reader_stops_the_writer(reader_is: str) -> None:
    """Back-pressure in both directions: what the proxy holds for a side that does not read is bounded."""
    total = 64 * 2**20
    sent = 0

    async def pour(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while sent < total:
                writer.write(b"x" * 2**16)
                await writer.drain()
                sent += 2**16

    release = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reader_is == "client":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await pour(writer)
        await release.wait()

    async with raw_server(handle) as port, proxy_to(f"http://127.0.0.1:{port}") as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=2**16)
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % total)
        pouring = asyncio.create_task(pour(writer) if reader_is == "server" else release.wait())
        before = -1
        while before != sent:  # until nothing has moved for a while
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < total // 2
        release.set()
        writer.transport.abort()
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


async def test_closing_the_proxy_cuts_connections() -> None:
    """At the end of a recording open connections are recorded as dropped by the proxy."""
    async with (
        serve(echo, "127.0.0.1", 0) as server,
        proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running,
        connect(f"ws://127.0.0.1:{running.port}/") as client,
    ):
        await client.send("a")
        await client.recv()
        await running.proxy.close()
        with pytest.raises(ConnectionClosed):
            await client.recv()
    assert isinstance(running.events[-1], Drop)
    assert running.events[-1].facts == {"by": "proxy"}
    assert running.proxy.connections == 1


async def test_an_end_is_told_once() -> None:
    """Whenever the proxy is closed, a connection that ends just then is told as one close or drop, not as two."""
    async with serve(echo, "127.0.0.1", 0) as server:
        for _ in range(25):
            async with proxy_to(f"ws://127.0.0.1:{_port(server)}/") as running:
                async with connect(f"ws://127.0.0.1:{running.port}/"):
                    pass
                await running.proxy.close()
                assert [type(event) for event in running.events[1:]] in ([Close], [Drop])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:8080", Target("ws://127.0.0.1:8080", "127.0.0.1", 8080, False, "/")),
        ("https://api.example.org/v1", Target("https://api.example.org/v1", "api.example.org", 443, True, "/v1")),
        ("ws://[::1]:9/x", Target("ws://[::1]:9/x", "::1", 9, False, "/x")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    """A URL of a server, or HOST:PORT."""
    assert parse_target(text) == target


def test_host_headers() -> None:
    """The default port is not named; an IPv6 address has its brackets."""
    assert parse_target("https://h").authority == "h"
    assert parse_target("http://h").authority == "h"
    assert parse_target("http://h:443").authority == "h:443"
    assert parse_target("ws://[::1]:9").authority == "[::1]:9"


@pytest.mark.parametrize("text", ["ftp://h/", "ws://", "ws://h:99999/", "http:///v1"])
def test_bad_targets_are_refused(text: str) -> None:
    """A usage error with the forms that can be written."""
    with pytest.raises(UsageError, match="is no address of a server"):
        parse_target(text)
