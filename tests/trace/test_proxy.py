"""The recording proxy between real clients and real servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request as Handshake
from websockets.http11 import Response as Answer

from lmtool.core.errors import UsageError
from lmtool.net.access.outgoing import key_in
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.evergreen.codec import encode, encode_json
from lmtool.protocol.evergreen.messages import SessionMessage
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.trace.driver import Driver, client_actions
from lmtool.trace.events import Close, Drop, Event, Frame, Message, Open, Piece, Request, Response
from lmtool.trace.proxy import Proxy, Target, parse_target
from lmtool.trace.sessions import session_actions
from tests.net.access.knocking import KEY, LET_IN, POLICY, REFUSED, http_answer, socket_status
from tests.protocol.evergreen.harness import leaf, registry
from tests.protocol.evergreen.test_websocket import ASK, closing, value
from tests.protocol.lmtp.harness import listening

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
async def proxy_to(url: str, policy: AccessPolicy | None = None, *, same_door: bool = False) -> AsyncIterator[Running]:
    """A proxy in front of a server."""
    events: list[Event] = []
    warnings: list[str] = []

    def tell(_number: int, some: Iterable[Event]) -> None:
        events.extend(some)

    target = replace(parse_target(url), same_door=same_door)
    proxy = Proxy(target, tell, warnings.append, time.monotonic, policy=policy)
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


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_sessions_are_kept_as_messages(compression: str | None) -> None:
    """Frames of `/evergreen`, of both kinds, are kept as a server of ours keeps them; what is no message, as it is."""
    server = EvergreenServer(Plugs(registry()))
    async with listening(server) as port, proxy_to(f"ws://127.0.0.1:{port}/") as proxy:
        async with connect(f"ws://127.0.0.1:{proxy.port}/evergreen", compression=compression) as client:
            await client.send(encode_json(SessionMessage((leaf("in", "jam"),))))
            await client.send(encode(SessionMessage(actions=ASK.actions)))
            assert await value(client, "out") == b"JAM"
            await client.send("this is no message")
            assert (await closing(client))[0] == 4400
        await proxy.told(Close)
    opened, *messages, closed = proxy.events
    assert isinstance(opened, Open)
    assert opened.facts["protocol"] == "evergreen"
    assert [type(event) for event in messages[:2]] == [Message, Message]
    assert messages[-1].content == "this is no message"
    assert [one.outputs for one in session_actions(messages)] == [{"text": (("text/plain", b"JAM"),)}]
    assert isinstance(closed, Close)
    assert (closed.code, closed.by) == (4400, "server")
    again: list[Event] = []
    async with listening(EvergreenServer(Plugs(registry()))) as port:
        driver = Driver(parse_target(f"ws://127.0.0.1:{port}/"), again.append, timeout=10)
        assert await driver.run(client_actions(proxy.events)) == ""
    assert [type(event) for event in again] == [type(event) for event in proxy.events]


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
        writer.write(b"POST /chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n" + body)
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
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % total)
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


async def test_who_is_not_let_in_goes_no_further() -> None:
    """Over HTTP and WebSocket: the server behind is not even connected to, and nothing is told."""
    reached = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reached
        reached += 1

    async with raw_server(count) as port, proxy_to(f"http://127.0.0.1:{port}/v1", POLICY) as running:
        for knock in REFUSED:
            for method in ("GET", "POST"):
                answer = await http_answer(running.port, knock, method, "/v1/chat/completions", b"x" * 300_000)
                assert answer.status_code == knock.status
                assert answer.json()["error"]["message"]
            assert await socket_status(running.port, knock) == knock.status
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")  # no HTTP/1: not followed, so not passed on
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    assert (reached, running.events, running.warnings) == (0, [], [])


async def test_each_request_of_a_connection_is_looked_at() -> None:
    """The first one lets no other in: the second is answered by the proxy, and ends the connection."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            seen.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    first = b"GET /a HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %b\r\n\r\n" % KEY.encode()
    async with raw_server(answer) as port, proxy_to(f"http://127.0.0.1:{port}", POLICY) as running:
        for second in (b"GET /b HTTP/1.1\r\nHost: localhost\r\n\r\n", first.replace(b"localhost", b"evil.example")):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(first)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            writer.write(second)
            assert (await reader.read())[9:12] in {b"401", b"421"}
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(first + b"GET /b HTTP/1.1\r\nHost: localhost\r\n\r\n")  # both at once: neither
        assert b"401" in await reader.read()
        writer.close()
    assert [head.split()[1] for head in seen] == [b"/a", b"/a"]


async def test_an_answer_is_not_broken_into() -> None:
    """A request that is not let in while another one is answered: the connection ends, and nothing is put between."""
    go_on = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await go_on.wait()

    async with raw_server(answer) as port, proxy_to(f"http://127.0.0.1:{port}") as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"12345")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /b HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert await reader.read() == b""
        go_on.set()
        writer.close()


@pytest.mark.parametrize("same_door", [False, True])
async def test_what_is_passed_on(same_door: bool) -> None:
    """The server gets its clients' keys, not the one for the proxy; its own name, or the one that was asked for.

    Nothing that is told has a key.
    """
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nset-cookie: session\r\n\r\n")

    async with (
        raw_server(answer) as port,
        proxy_to(f"http://127.0.0.1:{port}", POLICY, same_door=same_door) as running,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"GET /a HTTP/1.1\r\nHost: localhost:77\r\nAuthorization: Bearer sesame\r\nX-Other: 1\r\n"
            b"Proxy-Authorization: Bearer %b\r\n\r\n" % KEY.encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await running.told(Close)
    (head,) = seen
    assert b"Authorization: Bearer sesame" in head
    assert KEY.encode() not in head
    assert (b"Host: localhost:77" if same_door else b"Host: 127.0.0.1:%d" % port) in head
    request = next(event for event in running.events if isinstance(event, Request))
    assert request.headers["x-other"] == "1"
    assert not any(secret in repr(running.events) for secret in ("sesame", KEY, "session"))


async def test_probes_and_preflights_pass() -> None:
    """They need no key; the server behind answers them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 299 Fine\r\ncontent-length: 0\r\n\r\n")

    preflight = replace(LET_IN, headers={"origin": "https://good.example", "access-control-request-method": "POST"})
    async with raw_server(answer) as port, proxy_to(f"http://127.0.0.1:{port}", POLICY) as running:
        assert (await http_answer(running.port, REFUSED[0], "GET", "/health")).status_code == 299
        assert (await http_answer(running.port, preflight, "OPTIONS", "/v1/x")).status_code == 299


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


def test_keys_for_servers() -> None:
    """They are taken out of the URL, which may be shown; a URL's own comes before one for all servers."""
    target = parse_target("http://user:sesame@h/v1", "other")
    assert (target.url, target.host, target.authority) == ("http://h/v1", "h", "h")
    assert key_in(target.authorization) == "sesame"
    assert key_in(parse_target("h:1", "other").authorization) == "other"
    assert "sesame" not in repr(target)
    with pytest.raises(UsageError) as refused:
        parse_target("http://user:ses/ame@h:1/v1")
    assert "ame" not in str(refused.value)


@pytest.mark.parametrize("text", ["ftp://h/", "ws://", "ws://h:99999/", "http:///v1"])
def test_bad_targets_are_refused(text: str) -> None:
    """A usage error with the forms that can be written."""
    with pytest.raises(UsageError, match="is not a server address"):
        parse_target(text)
