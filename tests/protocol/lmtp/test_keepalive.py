"""A peer that no longer answers is found by pings: by a server and by our client, with real peers that fall silent."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys

import pytest
from websockets.asyncio.server import serve

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.protocol.lmtp.keepalive import PATIENT, Keepalive, PingLimits
from lmtool.protocol.lmtp.websocket_protocol import WebSocketProtocol
from tests.protocol.lmtp.harness import PATIENCE, masked, serving, silent_client
from tests.scripted_model import ScriptedModel

QUICK = 0.05
"""Seconds between pings."""
LONG = SamplingParams(max_tokens=10**6)


class Clock:
    """The part of an event loop that keeps time, moved by hand."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, call):
        timer = Timer(delay, call)
        self.timers.append(timer)
        return timer

    def advance(self):
        """Let the only timer run out; how long it was."""
        (timer,) = [one for one in self.timers if not one.cancelled]
        self.timers = []
        timer.call()
        return timer.delay


class Timer:
    def __init__(self, delay, call):
        self.delay, self.call, self.cancelled = delay, call, False

    def cancel(self):
        self.cancelled = True


class TestKeepalive:
    """The counting."""

    def watch(self, **more):
        clock, log = Clock(), []
        watching = Keepalive(clock, lambda: log.append("ping"), log.append, **more)
        return clock, log, watching

    def test_three_pings(self):
        """Three unanswered pings in a row; a sign of life begins the count anew."""
        clock, log, watching = self.watch()
        watching.start(PingLimits(7, 3))
        for _ in range(3):
            clock.advance()
        watching.alive()
        assert [clock.advance() for _ in range(4)] == [7] * 4
        assert log == ["ping"] * 6 + ["3 pings were left unanswered"]
        assert not clock.timers

    def test_patience(self):
        """A peer that may know nothing of extensions has five minutes, until it is known to."""
        clock, log, watching = self.watch()
        watching.start()
        assert [clock.advance() for _ in range(5)] == [60] * 5
        watching.start()  # changes nothing
        assert clock.advance() == 60
        assert log == ["ping"] * 5 + ["5 pings were left unanswered"]
        watching.start()
        watching.start(PingLimits(7))
        assert clock.advance() == 7
        assert PATIENT.interval * PATIENT.unanswered == 300

    def test_deaf(self):
        """Where nothing is read for other reasons, silence means nothing."""
        clock, log, watching = self.watch(deaf=lambda: True)
        watching.start(PingLimits(7, 3))
        for _ in range(9):
            clock.advance()
        assert log == ["ping"] * 9
        watching.stop()
        assert all(timer.cancelled for timer in clock.timers)


GENERATE = {"prompt": [1], "stream_id": 1, "max_tokens": 10**6}


async def test_client_that_takes_nothing():
    """TRA-14: a client that neither reads nor writes is found as well, though its answers cannot be sent any more."""
    model = ScriptedModel()
    config = ServerConfig(ping_interval=0.3, high_water_bytes=10**9)
    async with serving(model, config=config) as served, asyncio.timeout(PATIENCE):
        request = {**GENERATE, "lmtp": 1, "top_logprobs": 200}
        _, writer = await silent_client(
            served, *(f"GENERATE {json.dumps({**request, 'stream_id': i})}" for i in range(30))
        )
        writer.transport.pause_reading()
        while served.server.connections:
            await asyncio.sleep(0.01)
        assert len(model.cancelled) == 30
        writer.transport.abort()


async def test_client_that_is_lost_before_it_is_known(monkeypatch):
    """One whose connection ends while its first frame is read is not kept in memory for its pings."""
    monkeypatch.setattr("lmtool.protocol.lmtp.connection.is_long", lambda _frame: True)  # another process reads it
    async with serving(ScriptedModel()) as served, asyncio.timeout(PATIENCE):
        for _ in range(5):
            reader, writer = await silent_client(served)
            no_text = b"\x81\x81" + bytes(4) + b"\xff"
            writer.write(masked(f"GENERATE {json.dumps({**GENERATE, 'lmtp': 1})}") + no_text)
            await reader.read()
            writer.close()
            await writer.wait_closed()
        async with LmtpClient(served.url) as client:
            await client.info()  # behind the others
            pinged = [one for one in gc.get_objects() if type(one) is WebSocketProtocol and hasattr(one, "_keepalive")]
            assert [one.disconnected for one in pinged] == [False]


@contextlib.asynccontextmanager
async def program(code, *words):
    """A Python program and the first line that it prints; it is killed in the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            yield process, (await process.stdout.readline()).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


CLIENT = """
import asyncio, sys
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams

async def main():
    async with LmtpClient(sys.argv[1]) as client:
        request = GenerateRequest(1, (1,), SamplingParams(max_tokens=10**6), text=True)
        async for output in stream(client, request):
            print(output.token, flush=True)

asyncio.run(main())
"""
SERVER = """
import asyncio
from tests.protocol.lmtp.harness import serving
from tests.scripted_model import ScriptedModel

async def main():
    async with serving(ScriptedModel()) as served:
        print(served.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")
async def test_stopped_client():
    """TRA-14: of a client's process that stands still, the streams end; nothing tells it but its missing pongs."""
    model = ScriptedModel(manual=True)
    quick = ServerConfig(ping_interval=QUICK)
    async with stepping(model), serving(model, config=quick) as served, program(CLIENT, served.url) as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        while served.server.connections:
            await asyncio.sleep(0.01)
        assert len(model.cancelled) == 1


@contextlib.asynccontextmanager
async def stepping(model):
    """Let a manual model go on slowly."""

    async def go_on():
        while True:
            model.step()
            await asyncio.sleep(0.01)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")
async def test_stopped_server():
    """TRA-14, ERR-7: a server's process that stands still is a lost connection, and the error says how it is known."""
    async with program(SERVER) as (process, url), LmtpClient(url, ping_interval=QUICK) as client:
        outputs = stream(client, GenerateRequest(1, (1,), LONG, text=True))
        assert (await anext(outputs)).token is not None
        os.kill(process.pid, signal.SIGSTOP)
        last = None
        async for output in outputs:
            last = output
        assert last.error_code == "connection"
        assert "3 pings were left unanswered" in last.error


async def test_patient_with_plain_servers():
    """A server that is not known to speak the extensions may leave pings unanswered as long as LMQL's does."""

    async def answer(connection):
        async for frame in connection:
            if frame.startswith("GENERATE"):
                connection.transport.pause_reading()  # no pong from now on
                await asyncio.sleep(QUICK * 12)
                await connection.send('TOKEN [{"stream_id": 1, "token": 5, "logprob": 0.0, "finish_reason": "stop"}]')
                connection.transport.resume_reading()

    async with serve(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with LmtpClient(url, ping_interval=QUICK) as client:
            (output,) = [output async for output in stream(client, GenerateRequest(1, (1,), model="m"))]
            assert output.token == 5
