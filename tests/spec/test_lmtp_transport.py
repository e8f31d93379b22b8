"""LMTP, Transport."""

import asyncio
import base64
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.plugs import Plugs
from lmtool.protocol.lmtp.server import LmtpServer
from tests.net.access.knocking import KEY, POLICY, REFUSED, Knock, http_answer, socket_status
from tests.protocol.lmtp.harness import PATIENCE, Wire, masked, serving, silent_client, wire
from tests.scripted_model import tokens_of


async def test_the_first_frame_may_be_a_request(served):
    """TRA-1: the server listens at `/`; the first frame may be a request; `http://` and `ws://` mean the same."""
    for url in (f"ws://127.0.0.1:{served.port}", f"http://127.0.0.1:{served.port}/"):
        async with LmtpClient(url) as model:
            assert (await model.info()).model == "scripted"
    async with connect(f"ws://127.0.0.1:{served.port}", subprotocols=["lmtp", "other"]) as connection:
        assert connection.subprotocol == "lmtp"
    async with connect(f"ws://127.0.0.1:{served.port}") as connection:
        assert connection.subprotocol is None
        wire_ = Wire(connection)
        await wire_.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 2}')
        assert len(await wire_.stream(1)) == 2
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{served.port}/elsewhere")
    assert refused.value.response.status_code in (403, 404)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 101),
        ("http://127.0.0.1", 101),
        ("https://good.example", 101),
        ("http://models.example:3000", 101),
        ("https://example.org", 403),
        ("null", 403),
    ],
)
async def test_origins(scripted, origin, status):
    """TRA-6: pages of this machine, of the host they connect to, and those allowed by name may open a socket."""
    policy = AccessPolicy(origins=("https://good.example",), hosts=("models.example",))
    host = "models.example" if "models" in origin else None
    async with serving(scripted, policy=policy) as served:
        assert await socket_status(served.port, Knock("page", status, {"origin": origin}, host)) == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 101), ("127.0.0.1", 101), ("[::1]", 101), ("models.example", 101), ("pages.example", 421)],
)
async def test_hosts(scripted, host, status):
    """TRA-11: a handshake under a name that is not the server's is refused."""
    async with serving(scripted, policy=AccessPolicy(hosts=("models.example",))) as served:
        assert await socket_status(served.port, Knock("host", status, {}, host)) == status


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"Basic {base64.b64encode(f'user:{KEY}'.encode()).decode()}"},
        {"authorization": f"Basic {base64.b64encode(f'{KEY}:'.encode()).decode()}"},
        {"x-api-key": KEY},
        {},
    ],
    ids=["bearer", "password", "user", "x-api-key", "subprotocol"],
)
async def test_keys(scripted, headers):
    """TRA-12: a server that asks for a key refuses a handshake without it; it may be shown in any of the ways."""
    async with serving(scripted, policy=AccessPolicy(KEY)) as served:
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"sec-websocket-protocol": "lmtp, lmtp.key.d3Jvbmc"}):
            assert await socket_status(served.port, Knock("wrong", 401, wrong)) == 401
        offered = (
            None if headers else ["lmtp", f"lmtp.key.{base64.urlsafe_b64encode(KEY.encode()).decode().rstrip('=')}"]
        )
        async with connect(served.url, additional_headers=headers, subprotocols=offered) as connection:
            await Wire(connection).alive()
            assert connection.subprotocol == (None if headers else "lmtp")


async def test_the_door_is_the_ports(scripted):
    """TRA-13: plain HTTP is refused for the same, before its body is read; below `/health` nothing is asked for."""
    async with serving(scripted, policy=POLICY) as served:
        for knock in REFUSED:
            for method in ("GET", "POST"):
                assert (await http_answer(served.port, knock, method, "/")).status_code == knock.status
            assert (
                await http_answer(served.port, knock, "GET", "/health/x")
            ).status_code == 404  # let in: no such path
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")  # and no byte of it
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_pipes(scripted):
    """TRA-7: over a pipe a frame is a line; empty lines mean nothing; at the end what runs is finished."""
    reader = asyncio.StreamReader()
    reader.feed_data(b'\n  \nGENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 40}\n')
    reader.feed_eof()
    written = []

    class Writer:
        def write(self, data):
            written.append(data)

        async def drain(self):
            pass

    await LmtpServer(Plugs(scripted)).run_stdio(reader, Writer())
    lines = b"".join(written).decode().splitlines()
    entries = [entry for line in lines for entry in json.loads(line.partition(" ")[2])]
    assert [entry["token"] for entry in entries] == tokens_of((1,), 40)


async def test_slow_readers(manual):
    """TRA-9: a slow reader gets several steps in a frame, then its streams pause; nothing is lost."""
    async with serving(manual, config=ServerConfig(high_water_bytes=5000)) as served, wire(served) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 200}')
        await client.alive()
        for _ in range(200):
            manual.step()  # without a turn of the loop: nothing can be sent meanwhile
        (stream,) = manual.running.values()
        assert stream.paused
        found = []
        while len(found) < 200:
            _, entries = await client.receive()
            found += entries
            while manual.running and not stream.paused and len(found) >= stream.position:
                manual.step()
        assert [entry["token"] for entry in found] == tokens_of((1,), 200)


async def test_shutting_down(manual):
    """TRA-10: a server that shuts down starts nothing new, finishes what runs or fails it, and closes with 1001."""
    async with serving(manual) as served, wire(served) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1}')
        await client.send('GENERATE {"prompt": [1], "stream_id": 2}')
        await client.alive()
        draining = asyncio.create_task(served.server.drain(0.2))
        await asyncio.sleep(0)
        await client.send('GENERATE {"prompt": [1], "stream_id": 3}')
        (refused,) = await client.stream(3)
        manual.step()
        found = await client.streams(2)
        assert not await draining
        assert "error" in refused
        assert [entry.get("finish_reason") for entry in found[1]] == ["length"]
        assert "error" in found[2][-1]
        with pytest.raises(ConnectionClosed) as closed:
            await client.frame()
        assert closed.value.rcvd.code == 1001


async def test_silent_clients(manual):
    """TRA-14, TRA-8: a client that leaves three pings unanswered is cut off, its streams end; an old one has longer."""
    request = {"prompt": [1], "stream_id": 1, "max_tokens": 1000}
    async with serving(manual, config=ServerConfig(ping_interval=0.05)) as served, asyncio.timeout(PATIENCE):
        reader, old = await silent_client(served, f"GENERATE {json.dumps(request)}")
        silent, new = await silent_client(served, f"GENERATE {json.dumps({**request, 'lmtp': 1})}")
        received = await silent.read()  # to its end
        assert received.count(b"\x89\x08") == 3  # pings of 8 bytes
        assert received.endswith((1011).to_bytes(2, "big") + b"3 pings were left unanswered")
        while served.server.connections == 2:
            await asyncio.sleep(0)
        old.write(masked('MODEL_INFO {"stream_id": 2}'))
        await reader.readuntil(b"model_info")
        assert len(manual.cancelled) == 1
        old.close()
        new.close()
