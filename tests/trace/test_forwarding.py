"""Requests that no recording answers, passed on to a real server: here another player."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest
from websockets.asyncio.client import connect

from lmtool.core.errors import ConnectError, UsageError
from lmtool.net.access.policy import AccessPolicy
from lmtool.trace.events import Event
from lmtool.trace.exchanges import exchanges
from lmtool.trace.http_stream import Head
from lmtool.trace.matching import Matcher, Pace
from lmtool.trace.player import FrameForwarder, Player, forward_http
from lmtool.trace.proxy import parse_target
from tests.net.access.knocking import KEY, LET_IN, POLICY, Knock, http_answer
from tests.trace.conftest import generate, token, tokens
from tests.trace.test_player import STREAM, playing, request


@contextlib.asynccontextmanager
async def in_front_of(
    url: str, events: Sequence[Event] = (), api_key: str | None = None, policy: AccessPolicy | None = None
) -> AsyncIterator[int]:
    """A player of these events that asks a real server for the rest; its port."""
    target = parse_target(url, api_key)
    player = Player(Matcher(exchanges(events)), Pace(None), "error", lambda _: None, target=target, policy=policy)
    listening = socket.create_server(("127.0.0.1", 0))
    await player.listen([listening])
    try:
        yield listening.getsockname()[1]
    finally:
        await player.close()


async def test_frames() -> None:
    """A recorded request is answered as recorded, any other one as the server does, on one connection."""
    recorded = [generate(0), tokens(0, token(7) | {"finish_reason": "stop"})]
    behind = [generate(0, 1, seed=1), tokens(0, token(8) | {"finish_reason": "stop"})]
    async with (
        playing(behind) as server,
        in_front_of(server.url, recorded) as port,
        connect(f"ws://127.0.0.1:{port}/") as client,
    ):
        await client.send(request("a"))
        first = json.loads(str(await client.recv())[6:])
        await client.send(request("b", seed=1))
        second = json.loads(str(await client.recv())[6:])
    assert [(entry["stream_id"], entry["token"]) for entry in (*first, *second)] == [("a", 7), ("b", 8)]


async def test_keys_for_the_server_behind() -> None:
    """This program's own where it has one, over both wires; else whatever its client sends, over HTTP."""
    behind = [generate(0, 1), tokens(0, token(8) | {"finish_reason": "stop"}), *STREAM]
    async with playing(behind, policy=POLICY) as server:
        http = server.url.replace("ws", "http", 1).rstrip("/")
        async with in_front_of(server.url, api_key=KEY) as port, connect(f"ws://127.0.0.1:{port}/") as client:
            await client.send(request("a"))
            assert json.loads(str(await client.recv())[6:])[0]["token"] == 8
        async with in_front_of(server.url) as port, connect(f"ws://127.0.0.1:{port}/") as client:
            await client.send(request("a"))
            assert "asks for an API key" in str(await client.recv())
        own = AccessPolicy("own", ("https://good.example",))
        async with in_front_of(http, api_key=KEY, policy=own) as port:
            page = Knock("page", 0, {"authorization": "Bearer own", "origin": "https://good.example"})
            answer = await http_answer(port, page, "GET", "/v1/models")
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://good.example")
        async with in_front_of(http) as port:
            assert (await http_answer(port, LET_IN, "GET", "/v1/models")).status_code == 200
            assert (await http_answer(port, Knock("no key", 401, {}), "GET", "/v1/models")).status_code == 401


@pytest.mark.parametrize("own", [None, KEY])
async def test_what_the_server_behind_sees(own: str | None) -> None:
    """A program that asks, with one key: neither the page that asked nor what it showed here beside it."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    fields = {"authorization": "Bearer theirs", "proxy-authorization": "Bearer here", "origin": "http://localhost:1"}
    head = Head(b"", ("GET", "/v1/models", "HTTP/1.1"), (*fields.items(), ("x-other", "1")))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async for _ in forward_http(parse_target(url, own), head, b""):
            pass
    (told,) = seen
    lines = [line.lower() for line in told.splitlines()]
    assert [line for line in lines if b"authorization" in line] == [f"authorization: bearer {own or 'theirs'}".encode()]
    assert b"x-other: 1" in lines
    assert not any(line.startswith(b"origin") for line in lines)


async def test_cancel_goes_where_the_stream_is() -> None:
    """A stream that the server runs is cancelled there."""
    endless = [generate(0), tokens(0, token(7)), tokens(3600, token(8))]
    async with (
        playing(endless, pace=Pace(1.0)) as server,
        in_front_of(server.url) as port,
        connect(f"ws://127.0.0.1:{port}/") as client,
    ):
        await client.send(request(1))
        await client.recv()
        await client.send('CANCEL {"stream_id": 1}')
        assert await client.recv() == 'TOKEN [{"stream_id": 1, "finish_reason": "cancelled"}]'


async def test_http() -> None:
    """Status, headers and body are the server's; a server that is not there is a 502 with a sentence."""
    async with (
        playing(STREAM) as server,
        in_front_of(f"http://127.0.0.1:{server.port}/v1") as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        streamed = await client.post("/v1/x", json={"model": "m"})
        assert streamed.content == b'data: {"a":1}\n\ndata: [DONE]\n\n'
        assert (streamed.headers["content-type"], streamed.headers["x"]) == ("text/event-stream", "y")
        assert (await client.post("/v1/x", json={"model": "other"})).status_code == 404
        await server.player.close()
        gone = await client.get("/v1/models")
        assert gone.status_code == 502
        assert f"http://127.0.0.1:{server.port}/v1" in gone.json()["error"]["message"]


async def test_a_server_that_is_not_there() -> None:
    """The stream ends with an error that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"ws://127.0.0.1:{free.getsockname()[1]}/"
    async with in_front_of(url) as port, connect(f"ws://127.0.0.1:{port}/") as client:
        await client.send(request(1))
        (told,) = json.loads(str(await client.recv())[6:])
    assert told["stream_id"] == 1
    assert told["error"].startswith(f"no LMTP server at {url}")


async def test_each_wire_has_its_own_kind_of_address() -> None:
    """A frame is not sent to an HTTP server, nor a request to a WebSocket."""

    async def never(frame: str) -> None:
        raise AssertionError(frame)

    forwarder = FrameForwarder(parse_target("http://127.0.0.1:1/v1"), never)
    with pytest.raises(ConnectError, match="takes HTTP"):
        await forwarder.send(request(1))
    await forwarder.close()
    head = Head(b"", ("GET", "/v1/models", "HTTP/1.1"), ())
    with pytest.raises(UsageError, match="takes LMTP frames"):
        await anext(forward_http(parse_target("ws://127.0.0.1:1/"), head, b""))
