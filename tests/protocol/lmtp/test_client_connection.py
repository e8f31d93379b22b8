"""One life of a client's connection."""

import asyncio
import math
import sys

import psutil
import pytest

from lmtool.core.errors import ConnectError
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp import endpoint, pipe_transport
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.client_connection import ClientConnection
from tests.protocol.lmtp.harness import PATIENCE, serving
from tests.protocol.lmtp.test_client import peer
from tests.scripted_model import ScriptedModel, tokens_of


def link_to(url):
    return ClientConnection(endpoint.parse(url), open_timeout=PATIENCE)


async def test_requests_need_not_wait_for_the_opening():
    """What is submitted before the connection stands is sent as soon as it does, in order."""
    async with serving(ScriptedModel()) as served:
        link = link_to(served.url)
        found = []
        done = asyncio.Event()

        def sink(outputs):
            found.extend(output.token for output in outputs)
            if outputs[-1].last:
                done.set()

        link.submit(GenerateRequest(0, (3,), SamplingParams(max_tokens=4)), sink)
        assert (await link.ask(None))["model"] == "scripted"
        await done.wait()
        assert found == tokens_of((3,), 4)
        await link.close()
        assert link.lost


async def test_no_output_before_submit_returns():
    """A sink is never called inside of `submit`, not even for a request that cannot be written."""
    async with serving(ScriptedModel()) as served:
        link = link_to(served.url)
        calls = []
        link.submit(GenerateRequest(0, (1,), SamplingParams(temperature=math.inf)), calls.append)
        assert calls == []
        await link.opened()
        assert calls[0][0].error_code == "usage"
        await link.close()


async def test_closing_before_the_opening():
    """A link that is closed before it could begin to open still ends what was submitted."""
    link = link_to("ws://127.0.0.1:9/")
    calls = []
    link.submit(GenerateRequest(0, (1,)), calls.append)
    await link.close()
    assert calls[0][0].error_code == "connection"
    with pytest.raises(ConnectError):
        await link.opened()


async def test_one_call_a_sink():
    """A frame's outputs reach each sink in one call, also when streams of two sinks take turns."""
    model = ScriptedModel(manual=True)
    async with serving(model) as served:
        link = link_to(served.url)
        odd, even = [], []
        arrived = asyncio.Event()

        def take(outputs):
            even.append(outputs)
            arrived.set()

        for number in range(6):
            link.submit(GenerateRequest(number, (number,)), odd.append if number % 2 else take)
        await link.ask(None)
        model.step()
        await arrived.wait()
        assert [[output.stream_id for output in call] for call in (*odd, *even)] == [[1, 3, 5], [0, 2, 4]]
        await link.close()


async def test_cancelling_inside_of_a_callback():
    """A stream may be cancelled by whoever is told of something else in the same frame."""
    handles = []

    def answer(frame):
        stream_id = frame.partition('"stream_id":')[2][0]
        return [f'MSG [{{"stream_id": {stream_id}, "ignored": ["x"]}}, {{"stream_id": {stream_id}, "error": "no"}}]']

    async with peer(answer) as (url, _):
        link = ClientConnection(
            endpoint.parse(url),
            open_timeout=PATIENCE,
            on_ignored=lambda _: handles[0].cancel(),
        )
        calls = asyncio.Queue()
        handles.append(link.submit(GenerateRequest("a", (1,)), calls.put_nowait))
        async with asyncio.timeout(PATIENCE):
            (output,) = await calls.get()
        assert output.finish_reason == "cancelled"
        assert not link.lost
        await link.close()


async def test_a_server_that_stops_listening(monkeypatch):
    """A server that closes its input is lost, although its output stays open."""
    monkeypatch.setattr(pipe_transport, "EXIT_SECONDS", 0.05)
    code = "import os, signal; os.close(0); print('TOKEN []', flush=True); signal.pause()"
    shown = asyncio.Event()
    link = ClientConnection(
        endpoint.CommandEndpoint((sys.executable, "-c", code)),
        open_timeout=PATIENCE,
        on_frame=lambda *_: shown.set(),
    )
    await shown.wait()
    calls = asyncio.Queue()
    link.submit(GenerateRequest(0, tuple(range(100_000))), calls.put_nowait)
    async with asyncio.timeout(PATIENCE):
        ((lost,),) = [await calls.get()]
    assert lost.error_code == "connection"
    await link.close()


ALONE = """
import asyncio, os, subprocess, sys, time
os.mkdir(sys.argv[1])
leaves = "import os, sys, time; parent = os.getppid(); print(1, flush=True)\\n"
leaves += "while os.getppid() == parent: time.sleep(0.01)\\ntime.sleep(0.3); os.rmdir(sys.argv[1])"
child = subprocess.Popen([sys.executable, "-c", leaves, sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.readline()
from tests.protocol.lmtp.stdio_server import main
asyncio.run(main())
"""
"""A server that cannot start while anything of another one is left."""


async def test_a_process_starts_when_the_one_before_is_over(tmp_path):
    """With all that it has left behind: two would not have room in memory."""
    words = (sys.executable, "-c", ALONE, str(tmp_path / "taken"))
    async with asyncio.timeout(PATIENCE):
        async with LmtpClient(endpoint.CommandEndpoint(words)) as client:
            await client.info()
            (process,) = [one for one in psutil.Process().children() if str(tmp_path / "taken") in one.cmdline()]
            process.kill()
            while client.connected:
                await asyncio.sleep(0.01)
            assert "SIGKILL" in client.loss.message
            assert (await client.info()).model == "scripted"
        assert not (tmp_path / "taken").exists()
