"""What clients are told after a fault, over every wire, and what becomes of the process."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

import lmtool
from lmtool.core.errors import ConnectError, DeviceLostError, LmtoolError, OutOfMemoryError, TimeLimitError
from lmtool.core.interfaces import TokenModel
from lmtool.core.streams import error_of, stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.gateway.balance.balancer import Balancer
from lmtool.gateway.pools.config_reader import parse
from lmtool.inference.engine import device
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.serving.config import ModelsConfig, PoolsConfig, ServiceConfig
from lmtool.serving.service import Service
from tests.protocol.lmtp.harness import PATIENCE, until
from tests.serving.keyed_wires import MODEL, POOLS
from tests.serving.running import running

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILING = str(Path(__file__).with_name("failing_server.py"))
NEW = 16
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[Service, str]]:
    """A server with a pool over its model."""
    async with running(ServiceConfig(ModelsConfig(MODEL), pools=PoolsConfig(parse(POOLS)))) as (service, url):
        yield service, url


async def answers(url: str, count: int = NEW) -> list[list[int | None]]:
    """The ids of new streams over LMTP."""

    async def one(client: LmtpClient, number: int) -> list[int | None]:
        outputs = [output async for output in stream(client, GenerateRequest(number, (1, number + 3), SHORT))]
        assert outputs[-1].error is None, outputs[-1].error
        return [output.token for output in outputs]

    async with LmtpClient(url) as client:
        return await asyncio.gather(*(one(client, number) for number in range(count)))


async def lmtp(url: str) -> tuple[str, bool]:
    """Code of the error, and whether it may succeed later."""
    async with LmtpClient(url) as client:
        await client.models()
        outputs = [output async for output in stream(client, GenerateRequest("a", (1, 3), SHORT))]
    return outputs[-1].error_code or "", outputs[-1].retryable or False


async def posted(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and text."""
    async with aiohttp.ClientSession() as http, http.post(f"http{url[2:]}{path}", json=body) as answer:
        return answer.status, await answer.text()


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat completions": ("v1/chat/completions", {"messages": MESSAGES}),
    "completions": ("v1/completions", {"prompt": "Once"}),
    "responses": ("v1/responses", {"input": "Hello"}),
    "messages": ("v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    "unified": ("v1/language/own/chat", {"message": MESSAGES[0]}),
}


async def test_a_step_without_memory(served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wire says so, and that the request may succeed later; then 16 new streams are what they were."""
    _, url = served
    before = await answers(url)
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "run", _without_memory)
        assert await lmtp(url) == (OutOfMemoryError.code, True)
        for path, body in BODIES.values():
            status, text = await posted(url, path, body)
            assert status in {500, 502, 503}, (path, status, text)
            assert "out of memory" in text or ("own" in path and "try again" in text), (path, text)
            assert "Traceback" not in text
        with pytest.raises(LmtoolError, match="out of memory"):
            async with lmtool.session(url) as session:
                [piece async for piece in session.generate("Hello", model=MODEL, max_tokens=2)]
    assert await answers(url) == before


def _without_memory(*_: object) -> None:
    raise MemoryError


async def test_a_fault_in_the_middle_of_a_stream(served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that came stand; server-sent events end with the error as an event."""
    _, url = served
    run, steps = ModelRunner.run, []

    def failing(self: ModelRunner, plan: Any) -> Any:
        steps.append(plan)
        if len(steps) > 5:
            raise MemoryError
        return run(self, plan)

    monkeypatch.setattr(ModelRunner, "run", failing)
    status, text = await posted(url, "v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 50})
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert status == 200
    assert events[0]["choices"][0]["text"]
    assert "out of memory" in events[-1]["error"]["message"]


KILLED = """
import base64, socket, sys

host, port, request = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
with socket.create_connection((host, port)) as server:
    head = f"GET / HTTP/1.1\\r\\nHost: {host}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    head += f"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\\r\\n\\r\\n"
    server.sendall(head.encode() + bytes([0x81, 0x80 | len(request)]) + bytes(4) + request)
    while server.recv(1 << 16):
        print("received", flush=True)
"""
"""A client that reads one stream, without anything of ours."""


async def test_a_client_that_is_killed(served) -> None:
    """Clients that end by SIGKILL in the middle leave no stream behind; 16 new ones run."""
    service, url = served
    before, place = await answers(url), urlsplit(url)
    request = 'GENERATE {"stream_id": 1, "prompt": [1, 3], "max_tokens": 480, "ignore_eos": true, "temperature": 1}'
    words = [sys.executable, "-S", "-c", KILLED, str(place.hostname), str(place.port), request]
    clients = [await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE) for _ in range(4)]
    for client in clients:
        assert client.stdout is not None
        await client.stdout.readline()
        client.kill()
        await client.wait()
    await until(lambda: service.streams == 0)
    assert await answers(url) == before


async def test_the_wall_clock_jumps(served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the time of day does, streams, deadlines and the connection go on as they were."""
    _, url = served
    before, jumps = await answers(url), itertools.cycle((0.0, 86_400.0, -86_400.0, 1e9))
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    async with LmtpClient(url) as client:
        endless = GenerateRequest("late", (1, 3), SamplingParams(max_tokens=480, ignore_eos=True), deadline=0.05)
        outputs = [output async for output in stream(client, endless)]
        assert outputs[-1].error_code in {TimeLimitError.code, None}
        patient = GenerateRequest("patient", (1, 3), SHORT, deadline=60.0)
        outputs = [output async for output in stream(client, patient)]
        assert (len(outputs), outputs[-1].error) == (4, None)
    assert await answers(url) == before


async def test_a_lost_device_fails_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health says so, streams are sent elsewhere, and the reason ends the server."""
    async with running(ServiceConfig(ModelsConfig(MODEL))) as (service, url):
        ended = asyncio.create_task(service.ended())
        await asyncio.sleep(0)
        monkeypatch.setattr(device, "is_lost", lambda *_: True)
        monkeypatch.setattr(ModelRunner, "run", _gone)
        assert await lmtp(url) == (ConnectError.code, True)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(DeviceLostError, match="is lost: CUDA error"):
                await ended
        async with aiohttp.ClientSession() as http, http.get(f"http{url[2:]}health") as answer:
            assert answer.status == 500
            assert await answer.json() == {"status": "failed"}
        await service.drain(0)
        assert service.health.state == "failed"


def _gone(*_: object) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


async def test_the_process_ends_with_8(start_server: StartServer) -> None:
    """Its client gets the error first, and whoever started it is told in a sentence."""
    with start_server(program=(FAILING,)) as server:
        server.expect("ready in")
        async with LmtpClient(server.url) as client:
            assert isinstance(await deadly(client), ConnectError)
        assert server.wait() == DeviceLostError.exit_code == 8
        assert "error: the device cpu is lost: CUDA error: an illegal memory access" in "\n".join(server.rest())


async def deadly(client: TokenModel) -> LmtoolError:
    """Why the stream ended that a device does not survive."""
    outputs = [output async for output in stream(client, GenerateRequest("a", tuple(range(3, 400)), SHORT))]
    assert "is lost" in (outputs[-1].error or "")
    return error_of(outputs[-1])


async def test_a_worker_is_started_again() -> None:
    """One whose device is lost ends, and so does one that is killed; each is started again, and 16 new streams run."""
    balancer = Balancer([f"stdio:{sys.executable} {FAILING} serve --stdio"], check_seconds=0.1, wait_seconds=1.0)
    try:
        await balancer.info()
        request = GenerateRequest("a", tuple(range(3, 400)), SHORT)
        (last,) = [output async for output in stream(balancer, request)]
        assert (last.error_code, last.retryable) == (ConnectError.code, True)
        await until(lambda: bool(balancer.up))
        assert len(await asyncio.gather(*(_answer(balancer, number) for number in range(NEW)))) == NEW
    finally:
        await balancer.close()


async def _answer(model: TokenModel, number: int) -> None:
    """A stream that has all its tokens."""
    outputs = [output async for output in stream(model, GenerateRequest(number, (1, number + 3), SHORT))]
    assert [output.error for output in outputs] == 4 * [None]
