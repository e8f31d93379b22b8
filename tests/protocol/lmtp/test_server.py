"""A server on a port: connections, limits, shutdown, memory."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.keepalive import PingLimits
from lmtool.protocol.lmtp.plugs import Plugs
from lmtool.protocol.lmtp.server import LmtpServer
from lmtool.protocol.lmtp.websocket_protocol import WebSocketProtocol, uvicorn_options
from tests.protocol.lmtp.harness import PATIENCE, conversation, ends, serving, wire
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
    "prompt of objects": 'GENERATE {"stream_id": 1, "prompt": [{"a": 1}]}',
    "negative id": 'GENERATE {"stream_id": 1, "prompt": [-1]}',
    "id of 2^70": f'GENERATE {{"stream_id": 1, "prompt": [{2**70}]}}',
    "id out of the vocabulary": 'GENERATE {"stream_id": 1, "prompt": [5000]}',
    "negative max_tokens": 'GENERATE {"stream_id": 1, "prompt": [1], "max_tokens": -1}',
    "NaN temperature": 'GENERATE {"stream_id": 1, "prompt": [1], "temperature": NaN}',
    "endless bias": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": {"1": Infinity}}',
    "bias of words": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": {"the": 1}}',
    "bias as a list": 'GENERATE {"stream_id": 1, "prompt": [1], "logit_bias": [1]}',
    "fewer than no alternatives": 'GENERATE {"stream_id": 1, "prompt": [1], "top_logprobs": -3}',
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


async def test_too_many_connections():
    """One connection too many is refused with 503; the others go on."""
    async with serving(ScriptedModel(), config=ServerConfig(max_connections=1)) as served, wire(served) as client:
        with pytest.raises(InvalidStatus) as refused:
            await connect(served.url)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        await client.alive()


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
    """Uvicorn is told the protocol core with our own pings and limits, no deflate, and no pings of its own."""
    options = uvicorn_options(ServerConfig(max_frame_bytes=123, ping_interval=5, stall_limit=7))
    protocol = options.pop("ws")
    assert (protocol.func, protocol.keywords) == (WebSocketProtocol, {"pings": PingLimits(5, 3), "stall_limit": 7})
    assert options == {
        "ws_max_size": 123,
        "ws_per_message_deflate": False,
        "ws_ping_interval": None,
        "ws_ping_timeout": None,
    }


def stdio(lines: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tests.protocol.lmtp.stdio_server"],
        input=lines,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )


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
        await LmtpServer(Plugs(model)).run_stdio(Asking(), Gone())
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


def test_every_limit_is_finite():
    """Nothing that a stranger can use up is without a limit."""
    config = ServerConfig()
    numbers = [getattr(config, field.name) for field in dataclasses.fields(config)]
    assert all(0 < number < 2**31 for number in numbers)


MESSAGE = 'MODEL_INFO {"stream_id": 2, "data": "' + "x" * 3_000_000 + '"}'


async def in_parts(connection: ClientConnection) -> None:
    """A message of two frames, the second one large."""
    connection.protocol.send_text(MESSAGE[:10].encode(), fin=False)
    connection.protocol.send_continuation(MESSAGE[10:].encode(), fin=True)
    connection.transport.writelines(connection.protocol.data_to_send())


send: dict[str, Callable[[ClientConnection], Awaitable[None]]] = {
    "text": lambda connection: connection.send(MESSAGE),
    "parts": in_parts,
    "bytes": lambda connection: connection.send(MESSAGE.encode()),
}


@pytest.mark.parametrize("form", send)
async def test_nothing_of_the_last_message(form: str) -> None:
    """However it came: a client that sent a large one and now is silent takes no memory."""
    async with conversation(ScriptedModel()) as client:
        await client.alive()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await send[form](client.connection)
            (entry,) = await client.entries("MSG", 1)
            async with asyncio.timeout(PATIENCE):  # the thread that had it read may be a little late
                while tracemalloc.get_traced_memory()[0] > 500_000:
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
            gc.enable()
        assert ("binary" in entry.get("error", "")) == (form == "bytes")
        await client.alive()
