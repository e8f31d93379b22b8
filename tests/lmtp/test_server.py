"""The server on a real port: many clients at once, hostile ones among them, and its end."""

import asyncio
import contextlib
import json
import subprocess
import sys

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from lmtool.access.policy import AccessPolicy
from lmtool.lmtp.config import ServerConfig
from lmtool.lmtp.server import LmtpServer, uvicorn_options
from lmtool.lmtp.websocket_protocol import WebSocketProtocol
from tests.lmtp.harness import PATIENCE, Wire, conversation, ends, serving, until, wire
from tests.scripted_model import ScriptedModel, tokens_of

MALFORMED = {
    "nothing": "",
    "no space": "GENERATE",
    "not JSON": "GENERATE {'stream_id': 1}",
    "cut off": 'GENERATE {"stream_id": 1',
    "a list": 'GENERATE [{"stream_id": 1, "prompt": [1]}]',
    "null": "GENERATE null",
    "a number": "GENERATE 5",
    "no id": 'GENERATE {"prompt": [1]}',
    "null id": 'GENERATE {"prompt": [1], "stream_id": null}',
    "NaN id": 'GENERATE {"prompt": [1], "stream_id": NaN}',
    "long id": f'GENERATE {{"prompt": [1], "stream_id": "{"x" * 2000}"}}',
    "unknown command": 'HELLO {"stream_id": 1}',
    "lower case": 'generate {"stream_id": 1, "prompt": [1]}',
    "no prompt": 'GENERATE {"stream_id": 1}',
    "no scored": 'SCORE {"stream_id": 1, "prompt": [1]}',
    "prompt of strings": 'GENERATE {"stream_id": 1, "prompt": ["a"]}',
    "negative id": 'GENERATE {"stream_id": 1, "prompt": [-1]}',
    "id of 2^70": f'GENERATE {{"stream_id": 1, "prompt": [{2**70}]}}',
    "id out of the vocabulary": 'GENERATE {"stream_id": 1, "prompt": [5000]}',
    "negative max_tokens": 'GENERATE {"stream_id": 1, "prompt": [1], "max_tokens": -1}',
    "NaN temperature": 'GENERATE {"stream_id": 1, "prompt": [1], "temperature": NaN}',
    "endless bias": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": {"1": Infinity}}',
    "bias of words": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": {"the": 1}}',
    "bias as a list": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": [1]}',
    "too many alternatives": 'GENERATE {"stream_id": 1, "prompt": [1], "top_logprobs": 257}',
    "unknown model": 'GENERATE {"stream_id": 1, "prompt": [1], "model": "other"}',
    "info of an unknown model": 'MODEL_INFO {"stream_id": 1, "model": "other"}',
    "deep": f'GENERATE {{"stream_id": 1, "prompt": {"[" * 100_000}}}',
    "huge number": f'GENERATE {{"stream_id": 1, "prompt": [1], "seed": {"9" * 5000}}}',
    "half a surrogate": 'GENERATE {"stream_id": 1, "prompt": "\\ud800"}',
    "binary": b'GENERATE {"stream_id": 1, "prompt": [1]}',
    "binary noise": bytes(range(256)),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_frames(frame):
    """A malformed frame is one error for its sender; its other stream and other clients go on."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as sender, wire(served) as other:
        for client in (sender, other):
            await client.send('GENERATE {"prompt": [7], "stream_id": "good", "max_tokens": 4}')
            await client.alive()
        await sender.send(frame)
        _, (error,) = await sender.receive()
        assert set(error) == {"stream_id", "error"}
        assert error["stream_id"] in (1, None)
        while model.running:
            model.step()
        for client in (sender, other):
            assert [entry["token"] for entry in await client.stream("good")] == tokens_of((7,), 4)
            await client.alive()


async def test_64_streams_on_one_connection():
    """64 streams at once on one connection: order kept, nothing lost, nothing crossed, a step is a frame."""
    model = ScriptedModel()
    async with conversation(model) as client:
        for number in range(64):
            await client.send(f'GENERATE {{"prompt": [{number}], "stream_id": {number}, "max_tokens": {20 + number}}}')
        found = await client.streams(64)
    for number in range(64):
        assert [entry["token"] for entry in found[number]] == tokens_of((number,), 20 + number)
        assert [entry["finish_reason"] for entry in found[number]] == [None] * (19 + number) + ["length"]


async def test_64_connections():
    """64 connections at once, all with the same stream id: every client gets its own tokens."""
    model = ScriptedModel()

    async def one(served, number):
        async with wire(served) as client:
            await client.send(f'GENERATE {{"prompt": [{number}], "stream_id": 1, "max_tokens": 30}}')
            return [entry["token"] for entry in await client.stream(1)]

    async with serving(model) as served:
        answers = await asyncio.gather(*(one(served, number) for number in range(64)))
        assert served.server.connections <= 64
        assert len(served.logged) == 64
    assert answers == [tokens_of((number,), 30) for number in range(64)]


@pytest.mark.parametrize("size", [4 * 2**20 + 1, 5 * 2**20])
async def test_frames_above_the_limit(size):
    """A frame above 4 MiB closes its connection with 1009, cancels its streams, and disturbs nobody."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as sender, wire(served) as other:
        await sender.send('GENERATE {"prompt": [1], "stream_id": 1}')
        await sender.alive()
        with contextlib.suppress(ConnectionClosed):  # it may be closed while it is still sent
            await sender.send("GENERATE " + "x" * (size - 9))
        with pytest.raises(ConnectionClosed) as closed:
            await sender.frame()
        assert closed.value.rcvd.code == 1009
        await until(lambda: model.cancelled, other.alive)
        assert model.cancelled == ["1"]


async def test_a_frame_at_the_limit():
    """A frame of just 4 MiB is read: LMQL's masks over large vocabularies need megabytes."""
    head, tail = 'GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1, "pad": "', '"}'
    async with conversation(ScriptedModel()) as client:
        await client.send(head + "x" * (4 * 2**20 - len(head) - len(tail)) + tail)
        assert len(await client.stream(1)) == 1


async def test_leaving_stops_the_work():
    """A client that leaves, in good manners or not, stops its streams at once."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as other:
        for abrupt in (False, True):
            async with wire(served) as client:
                await client.send('GENERATE {"prompt": [1], "stream_id": "x", "max_tokens": 1000}')
                await client.alive()
                assert len(model.running) == 1
                if abrupt:
                    client.connection.transport.abort()
            await until(lambda: model.cancelled, other.alive)
            model.step()
            assert not model.running
            model.cancelled.clear()
        assert [entry.end for entry in served.logged if entry.command == "GENERATE"] == ["left", "left"]


async def test_a_client_that_does_not_read():
    """A client that does not read pauses its own stream; its neighbour's runs to the end; all comes when it reads."""
    model = ScriptedModel()
    config = ServerConfig(high_water_bytes=20_000)
    async with serving(model, config=config) as served, wire(served) as fast, wire(served, max_queue=None) as slow:
        slow.connection.transport.pause_reading()
        await slow.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 20000, "top_logprobs": 256}')
        # The kernel's buffers take megabytes; then the socket is full, and so is the server's own buffer.
        await until(lambda: any(stream.paused for stream in model.running.values()), fast.alive)
        (stream,) = model.running.values()
        assert stream.position < 20_000
        await fast.send('GENERATE {"prompt": [2], "stream_id": 2, "max_tokens": 500}')
        assert [entry["token"] for entry in await fast.stream(2)] == tokens_of((2,), 500)
        assert stream.paused
        paused_at = stream.position
        slow.connection.transport.resume_reading()
        read: list[int] = []
        while len(read) <= paused_at:
            read += [entry["token"] for entry in (await slow.receive())[1]]
        assert read == tokens_of((1,), len(read))


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_foreign_web_pages(origin):
    """A web page of a foreign origin cannot open a socket."""
    async with serving(ScriptedModel()) as served:
        with pytest.raises(InvalidStatus) as refused:
            await connect(served.url, origin=origin)
        assert refused.value.response.status_code == 403
        assert served.server.connections == 0


async def test_allowed_web_pages():
    """A page of this machine, or one allowed by name, can."""
    policy = AccessPolicy(origins=("https://good.example",))
    async with serving(ScriptedModel(), policy=policy) as served:
        for origin in ("http://localhost:3000", "https://good.example"):
            async with wire(served, origin=origin) as client:
                await client.alive()


async def test_too_many_connections():
    """One connection too many is refused with 503; the others go on."""
    async with serving(ScriptedModel(), config=ServerConfig(max_connections=1)) as served, wire(served) as client:
        with pytest.raises(InvalidStatus) as refused:
            await connect(served.url)
        assert refused.value.response.status_code == 503
        await client.alive()


async def test_plain_get():
    """A GET of `/` is answered with 200 and what is here: a health check needs no WebSocket."""
    async with serving(ScriptedModel()) as served, httpx.AsyncClient() as browser:
        answer = await browser.get(f"http://127.0.0.1:{served.port}/")
        assert answer.status_code == 200
        assert answer.json()["lmtp"] == 1


async def test_deflate_is_not_negotiated():
    """Compression is not agreed on, even when a client offers it."""
    async with serving(ScriptedModel()) as served, connect(served.url) as client:
        assert "Sec-WebSocket-Extensions" not in client.response.headers
        await Wire(client).alive()


async def test_drain_waits_for_streams():
    """Draining ends nothing that ends by itself in time, refuses what is new, and closes with 1001."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 2}')
        await client.alive()
        draining = asyncio.create_task(served.server.drain(PATIENCE))
        await asyncio.sleep(0)
        await client.send('GENERATE {"prompt": [1], "stream_id": 2}')
        (refused,) = await client.stream(2)
        assert "shutting down" in refused["error"]
        with pytest.raises(InvalidStatus):
            await connect(served.url)
        model.step()
        model.step()
        assert [entry["token"] for entry in await client.stream(1)] == tokens_of((1,), 2)
        assert await draining
        with pytest.raises(ConnectionClosed) as closed:
            await client.frame()
        assert closed.value.rcvd.code == 1001


async def test_drain_has_an_end():
    """What runs on when the time is over ends with an error."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served, wire(served) as client:
        await client.send('GENERATE {"prompt": [1], "stream_id": 1}')
        await client.alive()
        assert not await served.server.drain(0.01)
        (entry,) = await client.stream(1)
        assert "shutting down" in entry["error"]
        assert model.cancelled == ["1"]
        assert served.server.connections == 0


async def test_drain_of_an_idle_server():
    """With nothing running, draining succeeds at once, even without any time."""
    async with serving(ScriptedModel()) as served, wire(served) as client:
        await client.alive()
        assert await served.server.drain(0)


async def test_requests_are_logged():
    """Each request is logged with its connection, id, counts, times and end."""
    async with serving(ScriptedModel()) as served:
        for _ in range(2):
            async with wire(served) as client:
                await client.send('GENERATE {"prompt": [1, 2], "stream_id": "a", "max_tokens": 5, "model": "scripted"}')
                await client.stream("a")
        first, second = served.logged
        assert (first.connection, second.connection) == (1, 2)
        assert (first.stream_id, first.command, first.prompt_tokens, first.output_tokens) == ('"a"', "GENERATE", 2, 5)
        assert (first.end, first.error, first.model) == ("length", None, "scripted")
        assert 0 < first.ttft <= first.seconds


def test_uvicorn_options():
    """Uvicorn is told the protocol core, the frame limit, no deflate, and patient pings."""
    options = uvicorn_options(ServerConfig(max_frame_bytes=123))
    assert options == {
        "ws": WebSocketProtocol,
        "ws_max_size": 123,
        "ws_per_message_deflate": False,
        "ws_ping_interval": 60.0,
        "ws_ping_timeout": 300.0,
    }


def stdio(lines: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tests.lmtp.stdio_server"],
        input=lines,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )


def test_stdio():
    """Over pipes a frame is a line; at the end of the input what runs is finished."""
    done = stdio(
        b'GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 50}\n\n'
        b'MODEL_INFO {"stream_id": 2}\nGENERATE {"prompt": [2], "stream_id": 3}'
    )
    lines = done.stdout.decode().splitlines()
    entries = [entry for line in lines for entry in json.loads(line.partition(" ")[2])]
    assert [e["token"] for e in entries if e["stream_id"] == 1] == tokens_of((1,), 50)
    assert [e["token"] for e in entries if e["stream_id"] == 3] == tokens_of((2,), 32)
    assert "model_info" in next(e for e in entries if e["stream_id"] == 2)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "bad", [b"\xff\xfe\n", b"GENERATE " + b"x" * (5 * 2**20) + b"\n"], ids=["not UTF-8", "too long"]
)
def test_stdio_bad_lines(bad):
    """A line that cannot be read is answered with an error that belongs to no stream."""
    done = stdio(b'GENERATE {"prompt": [1], "stream_id": 1}\n' + bad)
    entries = [entry for line in done.stdout.splitlines() for entry in json.loads(line.partition(b" ")[2])]
    assert [entry for entry in entries if entry["stream_id"] is None and "error" in entry]
    assert sum(map(ends, entries)) == 2


async def test_stdio_of_a_reader_that_is_gone():
    """When nobody reads the answers any more, the work stops and the server ends."""

    class Gone:
        def write(self, data):
            raise BrokenPipeError

        async def drain(self):
            raise AssertionError

    class Asking:
        def __init__(self):
            self.lines = [b'GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 100000}\n']

        async def readline(self):
            if not self.lines:
                await asyncio.Event().wait()
            return self.lines.pop()

    model = ScriptedModel()
    async with asyncio.timeout(PATIENCE):
        await LmtpServer(model).run_stdio(Asking(), Gone())
    assert model.cancelled == ["1"]


class Seen:
    """A tap that remembers."""

    def __init__(self):
        self.told = []
        self.over = asyncio.Event()

    def opened(self, connection, agent):
        self.told.append(("opened", connection, agent.partition("/")[0]))

    def frame(self, connection, direction, frame):
        self.told.append((direction, connection, frame))

    def ended(self, connection, by, code):
        self.told.append(("ended", connection, by, code))
        self.over.set()


async def test_a_tap_is_shown_everything():
    """Who looks on sees each connection's beginning, its frames as they are, and how it ended."""
    seen = Seen()
    async with serving(ScriptedModel(), tap=seen) as served:
        async with wire(served) as client:
            await client.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1}', b"\x00")
            answers = {await client.frame(), await client.frame()}
        await asyncio.wait_for(seen.over.wait(), PATIENCE)
        async with wire(served) as other:
            await other.send("X {}")
            await other.frame()
            await served.server.drain(0)
    assert seen.told[0] == ("opened", 1, "Python")
    first = [entry[2] for entry in seen.told if entry[:2] == (">", 1)]
    assert first == ['GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 1}', b"\x00"]
    assert {entry[2] for entry in seen.told if entry[:2] == ("<", 1)} == answers
    assert [entry for entry in seen.told if entry[0] == "ended"] == [
        ("ended", 1, "client", 1000),
        ("ended", 2, "server", 1001),
    ]
