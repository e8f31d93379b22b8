"""The HTTP client: nothing added, nothing decoded, nothing kept, and failures in a few words."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from lmtool.net.http_client import as_body, open_client, reason_of, verbatim
from tests.fake_upstream import HANG, OK, Behaviour, FakeUpstream

ZIPPED = gzip.compress(b"words")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every request with these bytes; its address, and the heads of requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


async def test_requests_have_no_header_of_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and the body's framing alone are added; path and query stand as written; no proxy is asked."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    answer = b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n" + ZIPPED
    async with answering(answer) as (url, heads), open_client(headers={"x-own": "1"}) as client:
        for _ in range(2):
            async with client.post(verbatim(f"{url}/a%2Fb%20c?q=%C3%A9+x"), data=b"abc") as response:
                assert await response.read() == ZIPPED
    first, second = (head.decode().split("\r\n") for head in heads)
    assert first[0] == "POST /a%2Fb%20c?q=%C3%A9+x HTTP/1.1"
    assert {line.partition(":")[0].lower() for line in first[1:-2]} == {"host", "x-own", "content-length"}
    assert second == first


async def test_large_bodies() -> None:
    """A body of several MiB is sent whole, with its length."""
    async with FakeUpstream() as upstream, open_client() as client:
        data = b'{"pad": "' + b"x" * (3 << 20) + b'"}'
        async with client.post(f"{upstream.url}/chat/completions", data=as_body(data)) as response:
            assert response.status == 200
    (request,) = upstream.received
    assert request.body == data
    assert request.headers["content-length"] == str(len(data))


async def test_long_headers() -> None:
    """Answers may have headers of tens of kilobytes."""
    answer = b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 40_000 + b"\r\ncontent-length: 0\r\n\r\n"
    async with answering(answer) as (url, _), open_client() as client, client.get(url) as response:
        assert len(response.headers["x-long"]) == 40_000


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(fault="half"), "the answer broke off"),
        (HANG, "no answer in time"),
    ],
)
async def test_reasons(behaviour: Behaviour, words: str) -> None:
    """Each failure has its own few words."""
    async with FakeUpstream(behaviour) as upstream, open_client(read_timeout=0.05) as client:
        with pytest.raises((aiohttp.ClientError, TimeoutError)) as caught:
            async with client.post(f"{upstream.url}/chat/completions", json={}) as response:
                await response.read()
    assert reason_of(caught.value) == words


async def test_no_server() -> None:
    """Nobody listens: the system's own words, without an address in them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with open_client() as client:
        with pytest.raises(aiohttp.ClientError) as caught:
            await client.get(f"http://127.0.0.1:{port}/")
    assert reason_of(caught.value) == "Connection refused"
    assert reason_of(aiohttp.ServerDisconnectedError()) == "the server closed the connection"


async def test_many_at_once() -> None:
    """No limit on connections: each of 300 requests is answered although none of the others is complete."""
    async with FakeUpstream(HANG) as upstream, open_client() as client:
        waiting = [asyncio.ensure_future(client.post(upstream.url, json={})) for _ in range(299)]
        while len(upstream.received) < 299:
            await asyncio.sleep(0.01)
        upstream.usual = OK
        async with client.post(f"{upstream.url}/chat/completions", json={}) as response:
            assert response.status == 200
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
