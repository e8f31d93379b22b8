"""Recordings played to real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from lmtool.net.access.credentials import key_protocol
from lmtool.net.access.policy import AccessPolicy
from lmtool.trace.events import Done, Event, Frame, JsonText, Piece, Request, Response
from lmtool.trace.exchanges import exchanges
from lmtool.trace.matching import Chaos, Matcher, OnMiss, Pace
from lmtool.trace.player import Player
from tests.net.access.knocking import KEY, LET_IN, PAGE_LET_IN, POLICY, REFUSED, Knock, http_answer, socket_status
from tests.trace.conftest import generate, token, tokens

TWO_STREAMS: list[Event] = [
    generate(0, 1),
    generate(0, 2, temperature=0.5),
    tokens(0.01, token(11, 1), token(21, 2)),
    tokens(0.02, token(12, 1)),
    tokens(0.03, token(22, 2) | {"finish_reason": "stop"}),
    tokens(0.04, token(13, 1) | {"finish_reason": "length"}),
]
STREAM: list[Event] = [
    Request(0, 1, "POST", "/v1/x", {}, JsonText("", {"model": "m"}, "py")),
    Response(0.1, 1, 200, "OK", {"content-type": "text/event-stream", "transfer-encoding": "chunked", "x": "y"}),
    Piece(0.1, "sse", 1, JsonText("data: ", {"a": 1}, "compact")),
    Piece(0.2, "sse", 1, "data: [DONE]\n\n"),
    Done(0.2, 1),
    Request(1, 1, "GET", "/v1/models", {}),
    Response(1, 1, 200, "Fine", {"content-type": "application/json", "content-encoding": "gzip"}),
    Piece(1, "body", 1, JsonText("", {"data": []}, "py")),
    Done(1, 1),
]


@dataclass
class Playing:
    """A player, and what it has warned of."""

    port: int
    player: Player
    warnings: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """For WebSocket clients."""
        return f"ws://127.0.0.1:{self.port}/"


@contextlib.asynccontextmanager
async def playing(
    events: Sequence[Event],
    on_miss: OnMiss = "error",
    pace: Pace | None = None,
    chaos: Chaos | None = None,
    policy: AccessPolicy | None = None,
) -> AsyncIterator[Playing]:
    """A server made of these events; as fast as it can be unless a pace is given."""
    warnings: list[str] = []
    player = Player(Matcher(exchanges(events)), pace or Pace(None), on_miss, warnings.append, chaos, None, policy)
    listening = socket.create_server(("127.0.0.1", 0))
    await player.listen([listening])
    try:
        yield Playing(listening.getsockname()[1], player, warnings)
    finally:
        await player.close()


def request(stream_id: object, **more: object) -> str:
    """A GENERATE on the wire."""
    return f"GENERATE {json.dumps({'model': 'm', 'prompt': [5, 6, 7], 'stream_id': stream_id, **more})}"


async def test_answers_are_those_recorded_under_the_clients_own_ids() -> None:
    """Two streams at once, ids of the client's choice, tokens in their order within each stream."""
    async with playing(TWO_STREAMS) as mock, connect(mock.url) as client:
        await client.send(request("b", temperature=0.5))
        await client.send(request("a"))
        entries = [entry for _ in range(5) for entry in json.loads(str(await client.recv()).partition(" ")[2])]
    streams = {name: [e["token"] for e in entries if e["stream_id"] == name] for name in ("a", "b")}
    assert streams == {"a": [11, 12, 13], "b": [21, 22]}
    assert (mock.player.answered, mock.player.missed) == (2, 0)


async def test_frames_are_byte_exact() -> None:
    """With the recorded id a frame is what was recorded, byte for byte."""
    frame = 'TOKEN [{"token":7, "stream_id": 1, "logprob": -Infinity, "finish_reason": "stop"}]'
    async with playing([generate(0), Frame(1, "<", 1, frame)]) as mock, connect(mock.url) as client:
        await client.send(request(1))
        assert await client.recv() == frame


async def test_the_door() -> None:
    """Over HTTP and WebSocket alike; a request that is not let in is not looked for, and its body not waited for."""
    async with playing(STREAM, policy=POLICY) as mock:
        for knock in REFUSED:
            for method, path in (
                ("POST", "/v1/x"),
                ("GET", "/v1/models"),
                ("GET", "/nowhere"),
                ("POST", "/v1/messages"),
            ):
                assert (await http_answer(mock.port, knock, method, path)).status_code == knock.status
            assert await socket_status(mock.port, knock) == knock.status
        reader, writer = await asyncio.open_connection("127.0.0.1", mock.port)
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        assert (mock.player.answered, mock.player.missed) == (0, 0)
        assert (await http_answer(mock.port, LET_IN, "GET", "/v1/models")).json() == {"data": []}


async def test_pages() -> None:
    """A page that is allowed asks without its key first, and may read what comes; its socket has a subprotocol."""
    page = {"origin": "https://good.example"}
    asking = Knock("preflight", 204, {**page, "access-control-request-method": "POST"})
    async with playing(STREAM, policy=POLICY) as mock:
        assert (await http_answer(mock.port, asking, "OPTIONS", "/v1/models")).status_code == 204
        for knock, path in ((PAGE_LET_IN, "/v1/models"), (PAGE_LET_IN, "/nowhere"), (Knock("no key", 401, page), "/")):
            answer = await http_answer(mock.port, knock, "GET", path)
            assert answer.headers["access-control-allow-origin"] == "https://good.example"
        async with connect(mock.url, origin="https://good.example", subprotocols=["lmtp", key_protocol(KEY)]) as socket:
            assert socket.subprotocol == "lmtp"


async def test_fragmented_and_large_requests_are_read() -> None:
    """A request in fragments, with a mask the size of a vocabulary."""
    mask = {str(i): -100 for i in range(50_000)}
    async with playing([generate(0, logit_bias=mask), tokens(0, token(7))]) as mock, connect(mock.url) as client:
        text = request(1, logit_bias=mask)
        await client.send([text[i : i + 100_000] for i in range(0, len(text), 100_000)])
        assert json.loads(str(await client.recv())[6:])[0]["token"] == 7


@pytest.mark.parametrize(
    ("sent", "command"), [(request(4, seed=1), "TOKEN"), ('MODEL_INFO {"stream_id": 4}', "MSG"), ("hello", "MSG")]
)
async def test_a_request_that_is_not_recorded_is_told(sent: str, command: str) -> None:
    """The client gets an error where it looks for one; the warning names the nearest and what differs."""
    async with playing(TWO_STREAMS) as mock, connect(mock.url) as client:
        await client.send(sent)
        answer, _, payload = str(await client.recv()).partition(" ")
    assert answer == command
    assert "no recorded request matches" in json.loads(payload)[0]["error"]
    if command == "TOKEN":
        assert "seed: recorded nothing, got 1" in mock.warnings[0]
    assert mock.player.missed == 1


async def test_on_miss() -> None:
    """The nearest recording, an end of the connection, or silence."""
    async with playing(TWO_STREAMS, "nearest") as mock, connect(mock.url) as client:
        await client.send(request(4, seed=1))
        assert json.loads(str(await client.recv())[6:])[0]["token"] == 11
    async with playing(TWO_STREAMS, "close") as mock, connect(mock.url) as client:
        await client.send(request(4, seed=1))
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1011
    async with playing(TWO_STREAMS, "hang") as mock, connect(mock.url) as client:
        await client.send(request(4, seed=1))
        await client.send(request(1))
        assert json.loads(str(await client.recv())[6:])[0]["stream_id"] == 1


async def test_cancel_ends_an_answer() -> None:
    """CANCEL: no further token of the stream, an ending without a token."""
    endless = [generate(0), tokens(0, token(7)), tokens(3600, token(8))]
    async with playing(endless, pace=Pace(1.0)) as mock, connect(mock.url) as client:
        await client.send(request(1))
        await client.recv()
        await client.send('CANCEL {"stream_id": 1}')
        assert await client.recv() == 'TOKEN [{"stream_id": 1, "finish_reason": "cancelled"}]'
        await client.send('CANCEL {"stream_id": 2}')


async def test_http_bodies_are_byte_exact() -> None:
    """Streams as chunks, other bodies with their length; one connection for both; what is not recorded is 404."""
    async with playing(STREAM) as mock, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{mock.port}") as client:
        streamed = await client.post("/v1/x", json={"model": "m"})
        assert streamed.content == b'data: {"a":1}\n\ndata: [DONE]\n\n'
        assert streamed.headers["content-type"] == "text/event-stream"
        assert streamed.headers["x"] == "y"
        models = await client.get("/v1/models")
        assert (models.status_code, models.reason_phrase, models.json()) == (200, "Fine", {"data": []})
        missing = await client.post("/v1/x", json={"model": "other"})
        assert missing.status_code == 404
        assert "model: recorded 'm', got 'other'" in missing.json()["error"]["message"]
    async with playing(STREAM, "close") as mock:
        with pytest.raises(httpx2.RemoteProtocolError):
            await asyncio.to_thread(httpx2.get, f"http://127.0.0.1:{mock.port}/v1/y")


async def test_a_response_that_was_cut_is_cut() -> None:
    """A body without its end ends in the same way for the client."""
    async with playing(STREAM[:4]) as mock:
        with pytest.raises(httpx2.RemoteProtocolError):
            await asyncio.to_thread(httpx2.post, f"http://127.0.0.1:{mock.port}/v1/x", json={"model": "m"})


async def test_trouble_reaches_the_client() -> None:
    """A seeded cut ends the connection in the middle of an answer, WebSocket or HTTP, and only where it is told to."""
    seen: dict[str, set[bool]] = {"lmtp": set(), "http": set()}
    for seed in range(12):
        async with playing(TWO_STREAMS, chaos=Chaos(("cut",), seed)) as mock, connect(mock.url) as client:
            await client.send(request(1))
            received = 0
            with contextlib.suppress(ConnectionClosed):
                for _ in range(3):
                    await client.recv()
                    received += 1
            seen["lmtp"].add(received == 3)
        async with playing(STREAM, chaos=Chaos(("cut",), seed)) as mock:
            url = f"http://127.0.0.1:{mock.port}/v1/x"
            try:
                await asyncio.to_thread(httpx2.post, url, json={"model": "m"})
            except httpx2.HTTPError:
                seen["http"].add(False)
            else:
                seen["http"].add(True)
    assert seen == {"lmtp": {True, False}, "http": {True, False}}


async def test_bytes_that_are_no_request_end_the_connection() -> None:
    """Garbage is refused, and no reason to go on listening."""
    async with playing(STREAM) as mock:
        reader, writer = await asyncio.open_connection("127.0.0.1", mock.port)
        writer.write(b"\x16\x03\x01\r\n\r\n")
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize(
    ("pace", "due"),
    [
        (Pace(), [0.5, 1.0, 4.0]),
        (Pace(2.0), [0.25, 0.5, 2.0]),
        (Pace(None), [0, 0, 0]),
        (Pace(1.0, 1.0), [0.5, 1.0, 2.0]),
    ],
)
def test_pace(pace: Pace, due: list[float]) -> None:
    """Recorded offsets, faster or slower, without long waits, or without any."""
    assert list(pace.due([0.5, 1.0, 4.0])) == due
