"""Keys never reach a recording, whatever header, query or answer they stand in, over every wire of the proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus

from lmtool.net.access.credentials import key_protocol
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Done, Piece, Request
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder
from lmtool.trace.redaction import Redaction
from lmtool.trace.server_tap import UpstreamTap
from lmtool.trace.writer import TraceWriter
from tests.fake_upstream import Behaviour, FakeUpstream
from tests.trace.test_proxy import Running, _port, echo, proxy_to, raw_server

if TYPE_CHECKING:
    from lmtool.trace.events import Event

KEY = "sesame-0123456789abcdef"
HEADERS = {
    "authorization": f"Bearer {KEY}",
    "x-api-key": KEY,
    "api-key": KEY,
    "x-goog-api-key": KEY,
    "cookie": f"session={KEY}; theme=dark",
    "helicone-auth": f"Bearer {KEY}",
    "x-amz-security-token": KEY,
    "ocp-apim-subscription-key": KEY,
    "cf-access-client-secret": KEY,
    "proxy-authorization": f"Bearer {KEY}",
    "referer": f"http://page/?key={KEY}",
}
QUERIES = ("key", "api_key", "api-key", "access_token", "apiKey", "sig", "subscription-key", "token")
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models")


def recorded(events: list[Event], path: Path) -> str:
    """What a recording that redacts nothing has of them."""
    recorder = Recorder(TraceWriter(path, Header()), Redaction((), b""))
    recorder.record(events)
    recorder.close(events[-1].time)
    assert list(TraceReader(path))
    return path.read_text()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def ask(running: Running, path: str, headers: dict[str, str], body: bytes = b'{"model":"m"}') -> bytes:
    """One request on a connection of its own; the bytes of the answer."""
    lines = [f"{name}: {value}" for name, value in {"host": "localhost", **headers}.items()]
    head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, f"content-length: {len(body)}", "", ""]).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(head + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    answer += await reader.readexactly(size)
    await close(writer)
    return answer


@pytest.mark.parametrize("path", PATHS)
async def test_http(path: str, tmp_path: Path) -> None:
    """The server sees each key; a recording has none, though the server repeats it, and no header was redacted."""
    refusal = Behaviour(
        status=401, message="Incorrect API key: {key}, {key}", headers={"set-cookie": f"id={KEY}", "x-auth-token": KEY}
    )
    async with FakeUpstream(refusal) as upstream, proxy_to(upstream.url) as running:
        for name, value in HEADERS.items():
            await ask(running, path, {name: value, "x-api-key": KEY})
        for name in QUERIES:
            answer = await ask(running, f"{path}?{name}={KEY}&alt=sse", {"authorization": f"Bearer {KEY}"})
            assert KEY.encode() in answer
        async with asyncio.timeout(30):
            while sum(isinstance(event, Close) for event in running.events) < len(HEADERS) + len(QUERIES):
                await asyncio.sleep(0.002)
        sent = upstream.received
    assert all(KEY in one.headers[name] for one, name in zip(sent, HEADERS, strict=False) if name[:6] != "proxy-")
    assert all(KEY in one.path for one in sent[len(HEADERS) :])
    text = recorded(running.events, tmp_path / "a.lmtp.jsonl")
    assert KEY not in text
    assert KEY not in repr(running.events)
    assert f"{path}?key=***&alt=sse" in text
    assert "Incorrect API key: ***, ***" in text
    assert not running.warnings


AWKWARD = 'pa"ss/w+0rd-0123\\456'
"""A password that JSON and URLs write otherwise."""


async def test_a_key_in_another_spelling(tmp_path: Path) -> None:
    """An answer and its headers may repeat it escaped, encoded, without its scheme; a body may bring it."""
    basic = base64.b64encode(f"me-and-you:{AWKWARD}".encode()).decode()
    spelled = {"a": AWKWARD, "b": quote(AWKWARD), "c": basic, "d": base64.b64encode(AWKWARD.encode()).decode()}
    body = {"model": "m", "api_key": KEY, "auth": {"token": f"{KEY}-2"}, "messages": [{"token": "about-tokens"}]}
    answer = json.dumps([spelled, f"bad {KEY}, {KEY}-2, helicone {KEY}-3"]).encode()
    refusal = Behaviour(status=401, body=answer, headers={"www-authenticate": f"not {KEY}", "x-basic": basic})
    own = {"authorization": f"Basic {basic}", "helicone-auth": f"Bearer {KEY}-3", "x-note": f"I am {KEY}"}
    async with FakeUpstream(refusal) as upstream, proxy_to(upstream.url) as running:
        assert answer in await ask(running, "/v1/messages", own, json.dumps(body).encode())
        await running.told(Close)
    text = recorded(running.events, tmp_path / "a.lmtp.jsonl")
    assert "about-tokens" in text
    for secret in (*spelled.values(), KEY, json.dumps(AWKWARD)[1:-1], "0rd-0123"):
        assert secret.rstrip("=") not in text, secret


async def test_frames_that_repeat_a_key(tmp_path: Path) -> None:
    """A server may tell in a frame which key the handshake had."""

    async def repeat(connection: ServerConnection) -> None:
        await connection.send(f'MSG {{"error": "no such key: {KEY}"}}')

    async with serve(repeat, "127.0.0.1", 0) as server, proxy_to(f"127.0.0.1:{_port(server)}") as running:
        async with connect(f"ws://127.0.0.1:{running.port}", additional_headers={"x-api-key": KEY}) as client:
            assert KEY in str(await client.recv())
        await running.told(Close)
    text = recorded(running.events, tmp_path / "a.lmtp.jsonl")
    assert "no such key: ***" in text
    assert KEY not in text


async def test_lmtp(tmp_path: Path) -> None:
    """A handshake's headers, query and subprotocol; a refused one as well."""

    def refuse(connection: ServerConnection, request: object) -> object:
        return connection.respond(401, f"not {KEY}\n") if "refused" in str(request) else None

    for query in ("", f"?key={KEY}"):
        async with (
            serve(echo, "127.0.0.1", 0, process_request=refuse, subprotocols=["lmtp"]) as server,  # type: ignore[list-item, arg-type]
            proxy_to(f"127.0.0.1:{_port(server)}") as running,
        ):
            url = f"ws://127.0.0.1:{running.port}"
            own = {"x-api-key": KEY, "cookie": f"a={KEY}"}
            protocols = ["lmtp", key_protocol(KEY)]
            async with connect(f"{url}/{query}", additional_headers=own, subprotocols=protocols) as client:  # type: ignore[arg-type]
                await client.send("GENERATE {}")
                await client.recv()
            with pytest.raises(InvalidStatus):
                await connect(f"{url}/refused{query}", additional_headers=own, subprotocols=protocols)  # type: ignore[arg-type]
            async with asyncio.timeout(30):
                while sum(isinstance(event, Close) for event in running.events) < 2:
                    await asyncio.sleep(0.002)
        text = recorded(running.events, tmp_path / f"{len(query)}.lmtp.jsonl")
        assert "GENERATE" in text
        assert "not ***" in text
        assert KEY not in text
        assert key_protocol(KEY) not in text


def test_what_a_server_of_ours_says_to_providers() -> None:
    """A gateway's calls: a provider that repeats its key, of a header or the query, is recorded without."""
    events: list[Event] = []
    tap = UpstreamTap(lambda: 1, lambda _, some: events.extend(some), lambda: 0.0)
    for url, headers in ((f"https://a.example/v1?key={KEY}", {}), ("https://a.example/v1", {"X-Api-Key": KEY})):
        exchange = tap.begin("POST", url, headers, b"{}")
        exchange.head(401, {"Content-Type": "application/json"})
        exchange.data(f'{{"error": "{KEY} is no key"}}'.encode())
        exchange.end(complete=True)
    assert [event.wire() for event in events if isinstance(event, Piece)] == [b'{"error": "*** is no key"}'] * 2
    assert KEY not in repr(events)


def test_a_url_with_a_key_is_not_shown() -> None:
    """The server's URL stands in notes and headers."""
    assert parse_target(f"https://a.example/v1?api_key={KEY}&v=1").url == "https://a.example/v1?api_key=***&v=1"


async def test_compressed_streams(tmp_path: Path) -> None:
    """Packed events pass as they come and are recorded unpacked; no compression is asked for that nobody undoes."""
    asked: list[bytes] = []
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n")
        packer = zlib.compressobj(wbits=31)
        for one in (b'data: {"a": 1}\n\n', b'data: {"a": 2}\n\n'):
            packed = packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH)
            writer.write(b"%x\r\n%s\r\n" % (len(packed), packed))
            await go_on.wait()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async with raw_server(stream) as port, proxy_to(f"http://127.0.0.1:{port}") as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: br, gzip;q=0.5, zstd, deflate\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        unpack = zlib.decompressobj(31)

        async def chunk() -> bytes:
            size = int(await reader.readline(), 16)
            return unpack.decompress((await reader.readexactly(size + 2))[:-2])

        assert await chunk() == b'data: {"a": 1}\n\n'
        assert [event.wire() for event in running.events if isinstance(event, Piece)] == [b'data: {"a": 1}\n\n']
        go_on.set()
        assert await chunk() == b'data: {"a": 2}\n\n'
        await running.told(Done)
        await close(writer)
        await running.told(Close)
    assert b"Accept-Encoding: gzip;q=0.5, deflate\r\n" in asked[0]
    assert [event.wire() for event in running.events if isinstance(event, Piece)][1:] == [b'data: {"a": 2}\n\n']


async def test_requests_of_one_connection() -> None:
    """Requests one after the other on a connection that is kept open each have their answer in the recording."""
    async with FakeUpstream() as upstream, proxy_to(upstream.url) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for number in range(3):
            body = b'{"model":"m%d"}' % number
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            assert f'"m{number}"'.encode() in await reader.readexactly(size)
        await close(writer)
        await running.told(Close)
        assert upstream.connections == 1
    assert [event.connection for event in running.events if isinstance(event, Request | Done)] == [1] * 6


async def test_a_server_that_is_away_is_in_the_recording() -> None:
    """A request whose server cannot be reached is recorded with its 502, in the words of the API that was asked."""
    async with raw_server(lambda *_: asyncio.sleep(0)) as port:
        pass
    async with proxy_to(f"http://127.0.0.1:{port}") as running:
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await ask(running, path, {})
            assert answer.startswith(b"HTTP/1.1 502 ")
        async with asyncio.timeout(30):
            while sum(isinstance(event, Done) for event in running.events) < 2:
                await asyncio.sleep(0.002)
    asked = [event.path for event in running.events if isinstance(event, Request)]
    assert asked == ["/v1/chat/completions", "/v1/messages"]
    texts = [event.wire().decode() for event in running.events if isinstance(event, Piece)]
    assert all(f"no connection to http://127.0.0.1:{port}" in text for text in texts)
    assert ['"type": "error"' in text for text in texts] == [False, True]


async def test_a_client_that_leaves_a_stream() -> None:
    """The server notices, and the recording says who left."""
    async with FakeUpstream(Behaviour(fault="hang", after=2)) as upstream, proxy_to(upstream.url) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        body = b'{"stream":true}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await reader.readuntil(b"Hel")
        writer.transport.abort()
        await close(writer)
        async with asyncio.timeout(30):
            await upstream.left.wait()
        async with asyncio.timeout(30):
            while not any(getattr(event, "facts", {}).get("by") == "client" for event in running.events):
                await asyncio.sleep(0.002)
