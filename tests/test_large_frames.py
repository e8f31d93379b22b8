"""Large requests at a running server: each is refused in words or costs nothing, and nobody beside it notices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx2
import pytest
from websockets.asyncio.client import connect

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from tests.conftest import PATIENCE, ServerProcess
from tests.forkserver import spawn
from tests.lab.frames import memory
from tests.large_frames import CASES, LIMIT, LMTP

if TYPE_CHECKING:
    from tests.conftest import StartServer

STREAMS = 4
TOKENS = 60
STAYS = 1.2
"""Times the memory of before: the load test holds it to 1.1 after more of them."""


@pytest.fixture(scope="module")
def process(start_server: StartServer) -> Iterator[ServerProcess]:
    """A server of the embedded model that only these tests use."""
    with start_server() as started:
        started.expect("ready in")
        yield started


async def answer(url: str, name: str) -> str:
    """Send one, and take the first frame or the body that answers it."""
    case = CASES[name]
    made = case.make()
    assert len(made.encode()) <= LIMIT
    if case.wire != LMTP:
        async with httpx2.AsyncClient(base_url=url.replace("ws://", "http://"), timeout=PATIENCE) as client:
            return (await client.post(case.wire, content=made.encode())).text
    async with connect(url, compression=None, max_size=None, open_timeout=PATIENCE) as connection:
        await connection.send(made)
        async with asyncio.timeout(PATIENCE):
            return str(await connection.recv())


async def greedy(client: LmtpClient, number: int) -> list[object]:
    """What a stream says: ids, logprobs, alternatives."""
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    request = GenerateRequest(number, f"Once upon a time {number}", sampling)
    outputs = [output async for output in stream(client, request)]
    assert outputs[-1].error is None
    return [(output.token, output.logprob, output.top_logprobs) for output in outputs]


async def test_each_is_answered_and_streams_beside_are_the_same(process: ServerProcess) -> None:
    """Every kind on every route; greedy streams say the same ids with the same logprobs all the while."""
    wrong: dict[str, str] = {}

    async def ask(names: list[str]) -> None:
        for name in names:
            said = await answer(process.url, name)
            if CASES[name].told not in said:
                wrong[name] = said[:300]

    async with LmtpClient(process.url) as client:
        before = [await greedy(client, number) for number in range(STREAMS)]
        asking = asyncio.gather(*(ask(list(CASES)[first::3]) for first in range(3)))
        rounds = 0
        while not asking.done():
            began = time.perf_counter()
            assert await asyncio.gather(*(greedy(client, number) for number in range(STREAMS))) == before
            rounds += 1
            await asyncio.sleep(time.perf_counter() - began)  # half of the time is the large requests' alone
        await asking
    assert not wrong
    assert rounds > 3


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
async def test_memory_goes_back(process: ServerProcess) -> None:
    """What a large request took is free again a moment after it was answered, in the server and beside it."""
    names = [name for name in CASES if name.endswith(("text", " ids", "messages", "mask", "schema", "many"))]
    await answer(process.url, "lmtp text")
    before = memory(process.process.pid)
    for name in names:
        await answer(process.url, name)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while memory(process.process.pid)["with its helpers"] > STAYS * before["with its helpers"]:
                await asyncio.sleep(0.2)
    after = memory(process.process.pid)
    assert after["server"] < STAYS * before["server"]
    assert after["with its helpers"] < STAYS * before["with its helpers"]


@pytest.mark.parametrize("loaded", [False, True])
def test_over_a_pipe(clean_environment: None, *, loaded: bool) -> None:
    """A line is a frame there: the same are refused in the same words, also where they waited for the model."""
    names = ["text", "messages", "ids", "scored", "scored text", "mask of one id", "schema", "choice"]
    made = [CASES[f"lmtp {name}"].make().replace("1", str(at), 1) for at, name in enumerate(names)]
    with spawn(("serve", "--stdio"), env=os.environ, heavy=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        if loaded:
            server.stdin.write('MODEL_INFO {"stream_id": 99}\n')
            server.stdin.flush()
            assert "model_info" in server.stdout.readline()
        said, _ = server.communicate("".join(f"{frame}\n" for frame in made), PATIENCE)
    answers = sorted(entry for line in said.splitlines() for entry in line.split('{"stream_id":')[1:])
    assert len(answers) == len(names)
    for name, entry in zip(names, answers, strict=True):
        assert CASES[f"lmtp {name}"].told in entry
