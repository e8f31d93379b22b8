"""One model split over two processes of vLLM's: the same streams on both wires, and what a lost process ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from lmtool.core import constraint
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.protocol.lmtp.client import LmtpClient
from tests.inference.backends.vllm.conftest import engine_of, over_vllm_with, workers_of
from tests.inference.backends.vllm.test_over_vllm import collect, request_for, text
from tests.inference.backends.vllm.test_worker import every_process_may_be_killed

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.peer
SPLIT = ("--tensor-parallel-size", "2")
UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Else vLLM keeps a processor for each process beside those that it binds it to: more than a small machine has."""
PROMPT, GREEDY = (5, 6, 7, 8), SamplingParams(max_tokens=8, ignore_eos=True, top_logprobs=3)


@pytest.fixture(scope="module")
def server(start_server: StartServer, tiny_text: Path) -> Iterator[ServerProcess]:
    """A model of four heads over two processes, by vLLM's own option."""
    yield from over_vllm_with(start_server, tiny_text, *SPLIT, **UNBOUND)


async def same_streams_as_ours(server: ServerProcess, folder: Path) -> None:
    """Greedy ids, logprobs and scores of our own engine, over LMTP, and the ids over HTTP."""
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.engine_loader import load_engine

    engine = load_engine(str(folder), EngineConfig(dtype="float32", threads=1))
    ours = await collect(engine, GenerateRequest("a", PROMPT, GREEDY))
    engine.close()
    ids = tuple(output.token for output in ours if output.token is not None)
    async with LmtpClient(server.url) as client:
        theirs = await collect(client, GenerateRequest("a", PROMPT, GREEDY))
        scored = await collect(client, ScoreRequest("b", PROMPT, ids))
    assert tuple(output.token for output in theirs) == ids
    for outputs in (theirs, scored):
        logprobs = [output.logprob for output in outputs]
        assert logprobs == pytest.approx([output.logprob for output in ours], abs=1e-3)
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    url = server.url.replace("ws://", "http://")
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = (await http.post(f"{url}v1/completions", json=body)).raise_for_status().json()
    assert tuple(answer["choices"][0]["token_ids"]) == ids


async def same_constraints(server: ServerProcess) -> None:
    """Every process masks the same ids, so that all sample the same, with others in the batch too."""
    async with LmtpClient(server.url) as client:
        rules = [constraint.regex("[0-9]{4}"), constraint.choice(["red", "blue"]), None, constraint.regex("[a-c]{9}")]
        requests = [request_for(str(number), rule, max_tokens=20) for number, rule in enumerate(rules)]
        outputs = await asyncio.gather(*(collect(client, one) for one in requests))
    assert re.fullmatch("[0-9]{4}", text(outputs[0]))
    assert text(outputs[1]) in {"red", "blue"}
    assert outputs[2][-1].error is None
    assert re.fullmatch("[a-c]{9}", text(outputs[3]))


async def test_streams_are_those_of_our_engine(server: ServerProcess, tiny_text: Path) -> None:
    """Half of the heads in each of two processes."""
    (worker,) = workers_of(server)
    assert len(engine_of(worker)) == 3
    await same_streams_as_ours(server, tiny_text)


async def test_constraints(server: ServerProcess) -> None:
    """They are compiled and applied in both processes."""
    await same_constraints(server)


async def test_every_process_may_be_killed(server: ServerProcess) -> None:
    """The worker, the engine core, either half: streams end with an error, the log has the reason, all starts again."""
    await every_process_may_be_killed(server, processes=4)
