"""The port itself: what a request may consist of, how much of it waits, and how long it may take to come."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from lmtool.net.access import stall
from lmtool.net.access.bounded_reads import READ_BYTES
from lmtool.net.access.forwarding import parse_proxies
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.http import http_protocol
from lmtool.protocol.http.http_protocol import MAX_FRAMING_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.websocket_protocol import MAX_FRAGMENTS, WebSocketProtocol
from lmtool.serving.frontends import http_server
from lmtool.trace.exchanges import exchanges
from lmtool.trace.matching import Matcher, Pace
from lmtool.trace.player import Player
from lmtool.trace.proxy import Proxy, Target
from tests.lab.soak.connection import PING, PONG, TEXT, frame
from tests.trace.test_player import STREAM

KEY = "correct-horse"
SHOWN = f"Authorization: Bearer {KEY}"
HOST = "Host: localhost"
POLICY = AccessPolicy(KEY, ("https://good.example",), proxies=parse_proxies(["127.0.0.1", "unix"]))
PATIENCE = 30.0


@dataclass
class Port:
    """A server, and the ways to connect to it."""

    open: Callable[[], Any]
    running: int = 0
    """Requests that are being answered."""
    most: int = 0
    """Of them at once."""
    begun: int = 0
    messages: list[str] = field(default_factory=list)
    """What came over WebSockets, in order."""
    hold: asyncio.Event | None = None
    """Requests of `/held` wait for it."""

    async def answer(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the first answer to these bytes."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            return await answer_of(reader)
        finally:
            writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The next answer; 0 where the connection ends without one."""
    async with asyncio.timeout(PATIENCE):
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, {}, b""
        pairs = (line.partition(": ") for line in lines[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def application(port: Port) -> Starlette:
    """Answers with what it was asked, and echoes over WebSocket."""

    async def show(request: Request) -> Response:
        port.running, port.begun = port.running + 1, port.begun + 1
        port.most = max(port.most, port.running)
        try:
            if port.hold is not None and request.url.path == "/held":
                await port.hold.wait()
            body = await request.body()
            headers = sorted(name for name, _ in request.headers.items())
            client = None if request.client is None else request.client.host
            return JSONResponse({"headers": headers, "client": client, "body": body.decode()})
        finally:
            port.running -= 1

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for message in websocket.iter_text():
            port.messages.append(message)
            await websocket.send_text(message)

    methods = ["GET", "POST"]
    return Starlette(routes=[WebSocketRoute("/echo", echo), Route("/{path:path}", show, methods=methods)])


@contextlib.asynccontextmanager
async def served(kind: str, folder: Path, policy: AccessPolicy = POLICY) -> AsyncIterator[Port]:
    """A server of the application over `tcp`, `tls` or `unix`; what answers recordings; or a recording proxy."""
    port, listening = Port(lambda: None), socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    listening.bind(str(folder / "s") if kind == "unix" else ("127.0.0.1", 0))
    listening.listen(100)
    there = listening.getsockname()
    if kind in {"player", "proxy"}:
        async with contextlib.AsyncExitStack() as stack:
            matcher = Matcher(exchanges(STREAM))
            server: Player | Proxy = Player(matcher, Pace(None), "nearest", lambda _: None, policy=policy)
            if kind == "proxy":
                behind = await stack.enter_async_context(served("tcp", folder, AccessPolicy(origins=("*",))))
                _, writer = await behind.open()
                target = Target("ws://there/", "127.0.0.1", writer.get_extra_info("peername")[1], False, "/")
                writer.close()
                server = Proxy(target, lambda *_: None, lambda _: None, time.monotonic, policy)
            await server.listen([listening])
            port.open = lambda: asyncio.open_connection(*there)
            yield port
            await server.close()
            await _settled()
        return
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    if kind == "tls":
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").configure_cert(server_side)
        authority.configure_trust(client_side)
    port.open = {
        "tcp": lambda: asyncio.open_connection(*there),
        "tls": lambda: asyncio.open_connection(*there, ssl=client_side),
        "unix": lambda: asyncio.open_unix_connection(str(folder / "s")),
    }[kind]
    uvicorn_server = http_server(application(port), policy, ServerConfig())
    uvicorn_server.config.ssl = server_side if kind == "tls" else None
    task = asyncio.create_task(uvicorn_server.serve([listening]))
    while not uvicorn_server.started:
        await asyncio.sleep(0.001)
    try:
        yield port
    finally:
        uvicorn_server.should_exit = True
        await task
        await _settled()


async def _settled() -> None:
    """Let transports end that are closed."""
    for _ in range(5):
        await asyncio.sleep(0)


SERVERS = ("tcp", "tls", "unix")
ALL = (*SERVERS, "player", "proxy")


def head(*lines: str, method: str = "GET", path: str = "/v1/models") -> bytes:
    """A request's head."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def with_trailers(*trailers: str, lines: tuple[str, ...] = (HOST,), path: str = "/v1/x") -> bytes:
    """A request whose body is followed by trailers."""
    body = "".join(f"{trailer}\r\n" for trailer in trailers)
    return (
        head(*lines, "Transfer-Encoding: chunked", method="POST", path=path) + f"2\r\n{{}}\r\n0\r\n{body}\r\n".encode()
    )


HEADERS: dict[str, tuple[tuple[str, ...], int]] = {
    "a key": ((HOST, SHOWN), 200),
    "a key in capitals": ((HOST, SHOWN.replace("Authorization", "AUTHORIZATION").replace("Bearer", "bEARER")), 200),
    "a key in white space": ((HOST, f"Authorization:\t  Bearer {KEY} \t"), 200),
    "a key without white space": ((HOST, f"x-api-key:{KEY}"), 200),
    "x-api-key in white space": ((HOST, f"X-API-KEY:\t{KEY}\t "), 200),
    "a wrong key and the key": ((HOST, "Authorization: Bearer wrong", SHOWN), 200),
    "two wrong keys": ((HOST, "Authorization: Bearer wrong", "x-api-key: wrong"), 401),
    "a name before white space": ((HOST, f"Authorization : Bearer {KEY}"), 400),
    "a folded key": ((HOST, "Authorization: Bearer", f" {KEY}"), 400),
    "a folded first header": ((f" {SHOWN}", HOST), 400),
    "a key after a bare line feed": ((HOST, f"x: y\n{SHOWN}"), 400),
    "a key after a bare carriage return": ((HOST, f"x: y\r{SHOWN}"), 400),
    "no-break space is not white space": ((HOST, f"x-api-key: {KEY}\xa0"), 401),
    "no Host": ((SHOWN,), 400),
    "two Hosts": ((HOST, HOST, SHOWN), 400),
    "Host in white space": (("HOST: \t localhost\t", SHOWN), 200),
    "a folded Host": (("Host: localhost", " evil.example", SHOWN), 400),
    "a foreign Host in white space": (("hOST:\tevil.example ", SHOWN), 421),
    "a foreign Origin in capitals": ((HOST, SHOWN, "ORIGIN:\tHTTPS://EVIL.EXAMPLE "), 403),
    "a good Origin in white space": ((HOST, SHOWN, "Origin:\thttps://good.example \t"), 200),
    "a good and a foreign Origin": ((HOST, SHOWN, "Origin: https://good.example", "Origin: https://evil.example"), 400),
    "a folded Origin": ((HOST, SHOWN, "Origin: https://good.example", "\t.evil.example"), 400),
    "another site's page": ((HOST, SHOWN, "SEC-FETCH-SITE:\tcross-site "), 403),
    "another site's page, twice": ((HOST, SHOWN, "Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"), 403),
    "two clients": ((HOST, SHOWN, "FORWARDED:\tfor=192.0.2.1 ", "x-forwarded-for:192.0.2.2"), 400),
    "two lengths": ((HOST, SHOWN, "Content-Length: 0", "Content-Length: 0"), 400),
    "two lengths in one": ((HOST, SHOWN, "Content-Length: 0, 0"), 400),
    "a length with a sign": ((HOST, SHOWN, "Content-Length: +0"), 400),
    "a folded length": ((HOST, SHOWN, "Content-Length:", " 0"), 400),
    "a length in white space": ((HOST, SHOWN, "CONTENT-LENGTH:\t 0 "), 200),
    "a length and chunks": ((HOST, SHOWN, "Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    "chunks that are not last": ((HOST, SHOWN, "Transfer-Encoding: chunked, identity"), 400),
    "chunks twice": ((HOST, SHOWN, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
    "no chunks": ((HOST, SHOWN, "Transfer-Encoding: xchunked"), 400),
    "a folded encoding": ((HOST, SHOWN, "Transfer-Encoding: gzip,", " chunked"), 400),
    "an encoding after white space": ((HOST, SHOWN, "Transfer-Encoding : chunked"), 400),
}
"""Heads of a request, and the status of its answer."""


@pytest.mark.parametrize("kind", ALL)
async def test_headers_that_decide(kind: str, tmp_path: Path) -> None:
    """Case and white space change nothing; what is folded or twice is refused where servers may differ on it."""
    async with served(kind, tmp_path) as port:
        found = {name: (await port.answer(head(*lines)))[0] for name, (lines, _) in HEADERS.items()}
    if kind == "player":  # which answers once
        found = {name: 200 if status == 404 else status for name, status in found.items()}
    assert found == {name: status for name, (_, status) in HEADERS.items()}


@pytest.mark.parametrize("kind", ALL)
async def test_trailers_decide_nothing(kind: str, tmp_path: Path) -> None:
    """Not who asks, where, from which page or address; the application does not see them (RFC 9110, 6.5.1)."""
    async with served(kind, tmp_path) as port:
        for trailer in (SHOWN, f"x-api-key: {KEY}", f"Proxy-Authorization: Bearer {KEY}"):
            assert (await port.answer(with_trailers(trailer)))[0] == 401
        assert (await port.answer(with_trailers(HOST, lines=(SHOWN,))))[0] == 400
        evil = ("Host: evil.example", "Origin: https://evil.example", "X-Forwarded-For: 192.0.2.1", "Forwarded: for=x")
        more = ("Expect: 100-continue", "Connection: Upgrade", "Upgrade: websocket", "Sec-Fetch-Site: cross-site")
        status, headers, body = await port.answer(with_trailers(*evil, *more, lines=(HOST, SHOWN)))
        assert (status == 200 or kind == "player", headers.get("access-control-allow-origin")) == (True, None)
        if kind != "player":
            told = json.loads(body)
            assert told["headers"] == ["host", "transfer-encoding"]
            assert told["client"] == (None if kind == "unix" else "127.0.0.1")
            assert told["body"] == "{}"
        for framing in ("Content-Length: 99", "Transfer-Encoding: gzip"):  # httptools refuses them
            assert (await port.answer(with_trailers(framing, lines=(HOST, SHOWN))))[0] in {200, 400, 404}


@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_who_sends_through_a_proxy(kind: str, tmp_path: Path) -> None:
    """The last address of all headers of the name, in any case and white space, that no trusted proxy has."""
    async with served(kind, tmp_path) as port:
        for lines in (
            ("X-FORWARDED-FOR:\t192.0.2.7 ",),
            ("x-forwarded-for: 192.0.2.1", "X-Forwarded-For: 192.0.2.7"),
            ("x-forwarded-for: 192.0.2.1 ,\t192.0.2.7, 127.0.0.1",),
            ('Forwarded:FOR="192.0.2.7" ',),
        ):
            status, _, body = await port.answer(head(HOST, SHOWN, *lines))
            assert (status, json.loads(body)["client"]) == (200, "192.0.2.7")


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_without_a_key_behind_a_proxy(kind: str, tmp_path: Path) -> None:
    """What a proxy passes on is refused, whatever the case; a trailer says nothing of it."""
    async with served(kind, tmp_path, AccessPolicy(loopback_only=True)) as port:
        for line in ("FORWARDED: for=x", "x-real-ip:1", "X-Forwarded-Host:\tx "):
            assert (await port.answer(head(HOST, line)))[0] == 403
        assert (await port.answer(with_trailers("Forwarded: for=x")))[0] == 200


@pytest.mark.parametrize("kind", SERVERS)
async def test_expected_and_upgraded(kind: str, tmp_path: Path) -> None:
    """`Expect` and `Upgrade` mean the same in any case and white space, and nothing as trailers."""
    async with served(kind, tmp_path) as port:
        reader, writer = await port.open()
        writer.write(head(HOST, SHOWN, "EXPECT:\t100-Continue ", "Content-Length: 2", method="POST"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"ab")
        assert json.loads((await answer_of(reader))[2])["body"] == "ab"
        writer.write(with_trailers("Expect: 100-continue", lines=(HOST, SHOWN)))
        assert (await answer_of(reader))[0] == 200
        writer.close()
        handshake = ("CONNECTION:\tkeep-alive , UPGRADE ", "uPGRADE: WebSocket\t", "Sec-WebSocket-Version: 13")
        handshake = (HOST, SHOWN, *handshake, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        assert (await port.answer(head(*handshake, path="/echo")))[0] == 101
        assert (await port.answer(head(*handshake[:1], *handshake[2:], path="/echo")))[0] == 401
        many = [f"x-{number}: 1" for number in range(MAX_HEADERS - 10)]
        assert (await port.answer(head(*handshake, *many, path="/echo")))[0] in {101, 400, 431}


UPGRADES = ("Upgrade: h2c", "Upgrade: TLS/1.0", "Upgrade: h2c, websocket")
"""To protocols that no server here speaks; Java's HTTP client asks for `h2c` with each first request."""


@pytest.mark.parametrize("kind", [*SERVERS, "proxy"])
@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_upgrade_that_is_ignored(kind: str, upgrade: str, tmp_path: Path) -> None:
    """A request to upgrade to another protocol is answered as any: its body is no other request (RFC 9110, 7.8)."""
    asked = (HOST, SHOWN, "Connection: Upgrade, HTTP2-Settings", upgrade, "HTTP2-Settings: AAMAAABkAAQAAP__")
    body = b"x" * 5000 + head("Host: localhost", SHOWN, path="/smuggled") * 50
    async with served(kind, tmp_path) as port:
        reader, writer = await port.open()
        for framing, raw in (
            (f"Content-Length: {len(body)}", body),
            ("Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
            ("Content-Length: 0", b""),
        ):
            writer.write(head(*asked, framing, method="POST", path="/v1/x") + raw)
            writer.write(head(HOST, SHOWN, path="/v1/next"))
            status, _, told = await answer_of(reader)
            assert (status, json.loads(told)["body"]) == (200, body.decode() if raw else "")
            assert (await answer_of(reader))[0] == 200
        assert port.begun in {6, 0}  # 0: of the proxy, whose server counts
        writer.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_handshake_with_a_body(kind: str, tmp_path: Path) -> None:
    """A WebSocket handshake that has a body is no HTTP that is spoken here: 400, and so is CONNECT."""
    handshake = (HOST, SHOWN, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    handshake = (*handshake, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    async with served(kind, tmp_path) as port:
        for method, framing in (("GET", "Content-Length: 2"), ("POST", "Transfer-Encoding: chunked")):
            assert (await port.answer(head(*handshake, framing, method=method, path="/echo") + b"{}"))[0] == 400
        assert (await port.answer(head(HOST, SHOWN, "Upgrade: h2c", "Connection: upgrade", method="CONNECT")))[0] == 400
        many = [f"x-{number}: 1" for number in range(MAX_HEADERS - 10)]
        assert (await port.answer(head(*handshake, *many, path="/echo")))[0] == 431


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("lines", [("HTTP/1.0",), ("HTTP/1.1", "Connection: Close")])
async def test_a_last_request(kind: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    """After the answer to HTTP/1.0, or to a request that says `close`, the connection ends (RFC 9112, 9.3 and 9.6)."""
    version, *more = lines
    async with served(kind, tmp_path) as port:
        reader, writer = await port.open()
        writer.write(head(HOST, SHOWN, *more).replace(b"HTTP/1.1", version.encode()) + head(HOST, SHOWN))
        assert (await answer_of(reader))[0] in {200, 404}
        assert (await answer_of(reader))[0] == 0
        writer.close()


async def flooded(port: Port, first: bytes, endless: bytes, most: int) -> tuple[int, bytes]:
    """Status and body of the answer to endless bytes, of which the server may take so many."""
    reader, writer = await port.open()
    answer = asyncio.create_task(answer_of(reader))
    writer.transport.set_write_buffer_limits(8000)
    sent = 0
    with contextlib.suppress(ConnectionError):
        writer.write(first)
        while not answer.done() and sent < most + 8_000_000:  # what the system keeps on both sides
            writer.write(endless)
            sent += len(endless)
            await writer.drain()
            await asyncio.sleep(0)
    status, _, body = await answer
    writer.transport.abort()
    return status, body


FLOODS: dict[str, tuple[bytes, bytes]] = {
    "trailers": (b"0\r\n", b"a:\r\n" * 2000),
    "one trailer": (b"0\r\na:", b"a" * 8000),
    "a trailer's name": (b"0\r\n", b"a" * 8000),
    "trailers without a name": (b"0\r\n", b"a: b\r\n" * 2000),
    "a chunk extension": (b"1;", b"a" * 8000),
    "a quoted chunk extension": (b'1;a="', b"a" * 8000),
    "chunks of extensions": (b"", (b"1;" + b"a" * 900 + b"\r\nx\r\n") * 9),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("flood", FLOODS)
async def test_framing_is_bounded(kind: str, flood: str, tmp_path: Path) -> None:
    """Chunk extensions and trailers without end are refused, or end the connection, with a key and without."""
    async with served(kind, tmp_path) as port:
        first, endless = FLOODS[flood]
        chunked = head(HOST, SHOWN, "Transfer-Encoding: chunked", method="POST", path="/v1/x")
        status, body = await flooded(port, chunked + first, endless, MAX_FRAMING_BYTES)
        assert status in {400, 0}
        assert b"at most" in body or kind in {"player", "proxy"}
        assert (await port.answer(head(HOST, SHOWN)))[0] in {200, 404}


@pytest.mark.parametrize("kind", ALL)
async def test_heads_are_bounded(kind: str, tmp_path: Path) -> None:
    """In bytes and in number of headers; as many as there may be are read."""
    async with served(kind, tmp_path) as port:
        lines = [f"x-{number}: 1" for number in range(MAX_HEADERS - 2)]
        assert (await port.answer(head(HOST, SHOWN, *lines)))[0] in {200, 404}
        assert (await port.answer(head(HOST, SHOWN, "y: 1", *lines)))[0] == 400
        assert (await flooded(port, b"GET / HTTP/1.1\r\nx: ", b"y" * 8000, MAX_HEAD_BYTES))[0] == 400
        assert (await flooded(port, b"GET /", b"y" * 8000, MAX_HEAD_BYTES))[0] == 400


@pytest.mark.parametrize("kind", ALL)
async def test_small_chunks_are_content(kind: str, tmp_path: Path) -> None:
    """A body in chunks of one byte is no attack: the framing that content needs is not counted."""
    async with served(kind, tmp_path) as port:
        chunked = head(HOST, SHOWN, "Transfer-Encoding: chunked", method="POST", path="/v1/x")
        status, _, body = await port.answer(chunked + b"1;a=b\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        assert status == 200 or kind == "player"
        assert kind == "player" or len(json.loads(body)["body"]) == 20_000


@pytest.mark.parametrize("kind", SERVERS)
async def test_few_requests_of_a_connection_wait(kind: str, tmp_path: Path) -> None:
    """While one is answered, at most a few are kept and nothing more is read; all are answered, in order."""
    async with served(kind, tmp_path) as port:
        port.hold = asyncio.Event()
        reader, writer = await port.open()
        count = 3000
        for number in range(count):
            writer.write(head(HOST, SHOWN, f"x-{number}: 1", path="/held"))
        while not port.begun:
            await asyncio.sleep(0.001)
        waiting = [one for one in _protocols(http_protocol.HttpProtocol) if one.pipeline]
        assert all(len(one.pipeline) < 2048 // len(head(HOST, SHOWN)) + MAX_PIPELINED for one in waiting)
        assert all(len(one._unread) <= 2 * READ_BYTES for one in waiting)
        port.hold.set()
        for number in range(count):
            assert f"x-{number}" in json.loads((await answer_of(reader))[2])["headers"]
        assert (port.most, port.begun) == (1, count)
        writer.close()


def _protocols(*kinds: type) -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, kinds)]


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
ENDINGS = {
    "silent": b"",
    "refused head": b"\x00\r\n\r\n",
    "half a head": b"GET / HTTP/1.1\r\nHo",
    "answered": head(HOST, SHOWN, "Connection: close"),
    "refused, its body unsent": head(HOST, "Transfer-Encoding: chunked", method="POST"),
    "half a body": head(HOST, SHOWN, "Content-Length: 5", method="POST") + b"x",
    "pipelined": head(HOST, SHOWN) * 5,
    "upgraded": head(HOST, SHOWN, *UPGRADE, path="/echo"),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_a_closed_connection_leaves_nothing(kind: str, ending: str, tmp_path: Path) -> None:
    """Its memory is free at once: cycles wait for a collection that a large process makes rarely."""
    async with served(kind, tmp_path) as port:
        before = len(_protocols(http_protocol.HttpProtocol, WebSocketProtocol))
        gc.collect()
        gc.disable()
        try:
            reader, writer = await port.open()
            writer.write(ENDINGS[ending])
            if ending != "silent" and "half" not in ending:
                await answer_of(reader)
            await asyncio.sleep(0.01)  # let the server read what is not answered
            writer.transport.abort()
            async with asyncio.timeout(2):
                while len(_protocols(http_protocol.HttpProtocol, WebSocketProtocol)) > before:
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_client_that_leaves_is_noticed(kind: str, tmp_path: Path) -> None:
    """A body that comes behind other requests is read to its end, however much waits."""
    async with served(kind, tmp_path) as port:
        reader, writer = await port.open()
        body = b"x" * 300_000
        post = head(HOST, SHOWN, f"Content-Length: {len(body)}", method="POST", path="/v1/x") + body
        writer.write(head(HOST, SHOWN) * 10 + post + head(HOST, SHOWN) * 3 + post)
        sizes = [len(json.loads((await answer_of(reader))[2])["body"]) for _ in range(15)]
        assert sizes == [0] * 10 + [300_000] + [0] * 3 + [300_000]
        writer.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_answer_is_not_broken_into(kind: str, tmp_path: Path) -> None:
    """Bytes that are no request, behind one that is being answered, end the connection after no half of an answer."""
    async with served(kind, tmp_path) as port:
        status, _, body = await port.answer(head(HOST, SHOWN) + b"\x00nothing\r\n\r\n")
        assert (status, body[:1]) in {(200, b"{"), (400, b"I"), (0, b"")}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: loc", b"\r\n"])
async def test_a_request_that_does_not_come(
    kind: str, sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection is closed whose head does not come within its time."""
    monkeypatch.setattr(stall, "ARRIVAL_SECONDS", 0.2)
    async with served(kind, tmp_path) as port:
        reader, writer = await port.open()
        writer.write(sent)
        assert (await answer_of(reader))[0] == 0
        writer.close()


@pytest.mark.parametrize("kind", [*SERVERS, "player"])
async def test_a_body_that_does_not_come(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed whose body does not come in time; that of an answered request has less."""
    monkeypatch.setattr(stall, "ARRIVAL_SECONDS", 0.2)
    monkeypatch.setattr(http_protocol, "_LINGER_SECONDS", 0.1)
    async with served(kind, tmp_path) as port:
        for lines, status in (((HOST, SHOWN), 0), ((HOST,), 401)):
            reader, writer = await port.open()
            writer.write(head(*lines, "Content-Length: 5", method="POST", path="/v1/x") + b"a")
            assert (await answer_of(reader))[0] == status
            async with asyncio.timeout(PATIENCE):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_answer_may_take_its_time(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a request ends with it, and begins anew with the next one."""
    monkeypatch.setattr(stall, "ARRIVAL_SECONDS", 0.1)
    async with served(kind, tmp_path) as port:
        port.hold = asyncio.Event()
        reader, writer = await port.open()
        for _ in range(2):
            port.hold.clear()
            asyncio.get_running_loop().call_later(0.3, port.hold.set)
            writer.write(head(HOST, SHOWN, path="/held"))
            assert (await answer_of(reader))[0] == 200
        writer.close()


@contextlib.asynccontextmanager
async def socketed(port: Port) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An open WebSocket that echoes."""
    reader, writer = await port.open()
    writer.write(head(HOST, SHOWN, *UPGRADE, path="/echo"))
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    yield reader, writer
    writer.transport.abort()


async def frame_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next frame's opcode and payload."""
    async with asyncio.timeout(PATIENCE):
        first, size = await reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        return first & 15, await reader.readexactly(size)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("data", [b"", b"a"])
async def test_fragments_are_bounded(kind: str, data: bytes, tmp_path: Path) -> None:
    """A message has at most so many; one with that many is read, and one more closes the connection."""
    async with served(kind, tmp_path) as port, socketed(port) as (reader, writer):
        begin, more, end = frame(TEXT, b"(", fin=False), frame(0, data, fin=False), frame(0, b")")
        for _ in range(2):
            writer.write(begin + more * MAX_FRAGMENTS + end)
            assert await frame_of(reader) == (TEXT, b"(" + data * MAX_FRAGMENTS + b")")
        writer.write(begin + more * (MAX_FRAGMENTS + 1))
        opcode, payload = await frame_of(reader)
        assert (opcode, payload[:2]) == (8, (1009).to_bytes(2, "big"))
        assert b"fragments" in payload


@pytest.mark.parametrize("kind", SERVERS)
async def test_messages_take_turns(kind: str, tmp_path: Path) -> None:
    """Between two small messages of one connection another one is served: one in a turn of the event loop."""
    async with served(kind, tmp_path) as port, socketed(port) as (one, flood), socketed(port) as (other, writer):
        flood.write(frame(TEXT, b"a") * 5000)
        await frame_of(one)
        writer.write(frame(TEXT, b"b"))
        assert await frame_of(other) == (TEXT, b"b")
        assert port.messages.index("b") < 4000


@pytest.mark.parametrize("kind", SERVERS)
async def test_pings_of_a_client_that_reads_nothing(kind: str, tmp_path: Path) -> None:
    """The last one is answered, once the client reads; the others take no memory (RFC 6455, 5.5.3)."""
    async with served(kind, tmp_path) as port, socketed(port) as (reader, writer):
        writer.write(b"".join(frame(PING, b"%d" % number) for number in range(1000)) + frame(TEXT, b"a"))
        pongs = []
        while (got := await frame_of(reader))[0] == PONG:
            pongs.append(int(got[1]))
        assert pongs == sorted(pongs)
        assert got == (TEXT, b"a") or pongs[-1] == 999
        assert len(pongs) < 100
