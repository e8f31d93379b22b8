"""vLLM's engine as a model: ids, logprobs, bias, scoring, abort."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.interfaces import TokenModel, stream
from lmtool.lmtp.client import LmtpClient
from lmtool.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.peer


async def collect(model: TokenModel, request: GenerateRequest | ScoreRequest) -> list[TokenOutput]:
    async with asyncio.timeout(60):
        return [output async for output in stream(model, request)]


async def test_it_says_and_scores_what_our_engine_does(over_vllm: ServerProcess, tiny: Path) -> None:
    """Greedy ids and logprobs of the same checkpoint in float32; the generated ids scored are the same numbers."""
    from lmtool.engine.backends import load_engine
    from lmtool.engine.config import EngineConfig

    prompt, sampling = (5, 6, 7, 8), SamplingParams(max_tokens=8, ignore_eos=True, top_logprobs=3)
    engine = load_engine(str(tiny), EngineConfig(dtype="float32", threads=1))
    async with LmtpClient(over_vllm.url) as client:
        ours, theirs = [await collect(model, GenerateRequest("a", prompt, sampling)) for model in (engine, client)]
        scored = await collect(client, ScoreRequest("b", prompt, tuple(o.token for o in ours if o.token is not None)))
    engine.close()
    assert [output.token for output in theirs] == [output.token for output in ours]
    assert [output.logprob for output in theirs] == pytest.approx([output.logprob for output in ours], abs=1e-3)
    assert [output.logprob for output in scored] == pytest.approx([output.logprob for output in ours], abs=1e-3)
    assert theirs[-1].finish_reason == "length"
    for mine, other in zip(ours, theirs, strict=True):
        assert [token for token, _ in other.top_logprobs or ()] == [token for token, _ in mine.top_logprobs or ()]


async def test_a_bias_forces(over_vllm: ServerProcess) -> None:
    """With logprob 0; a stop id ends the stream and is sent."""
    async with LmtpClient(over_vllm.url) as client:
        sampling = SamplingParams(max_tokens=4, logit_bias={9: 100.0}, stop_token_ids=(9,))
        (only,) = await collect(client, GenerateRequest("a", (5, 6), sampling))
    assert (only.token, only.finish_reason) == (9, "stop")
    assert only.logprob == pytest.approx(0.0, abs=1e-6)


async def test_eos_ends_a_stream(over_vllm: ServerProcess) -> None:
    """The model's own eos id, 2, which vLLM has no tokenizer to know."""
    async with LmtpClient(over_vllm.url) as client:
        info = await client.info()
        outputs = await collect(
            client, GenerateRequest("a", (5, 6), SamplingParams(max_tokens=4, logit_bias={2: 100.0}))
        )
    assert info.eos_token_ids == (2,)
    assert [output.token for output in outputs] == [2]
    assert outputs[-1].finish_reason == "stop"


async def test_seeds_and_errors(over_vllm: ServerProcess) -> None:
    """A seeded stream is the same again; what cannot be served ends its own stream only."""
    async with LmtpClient(over_vllm.url) as client:
        request = GenerateRequest("a", (5, 6), SamplingParams(max_tokens=6, temperature=1.0, seed=7, ignore_eos=True))
        first, again = await collect(client, request), await collect(client, request)
        assert [output.token for output in first] == [output.token for output in again]
        assert "not in the vocabulary" in str((await collect(client, GenerateRequest("a", (99999,))))[-1].error)
        assert "context" in str((await collect(client, GenerateRequest("a", (5,) * 1200)))[-1].error)


async def test_cancel_aborts(over_vllm: ServerProcess) -> None:
    """The stream ends with `cancelled`, and the engine goes on with others."""
    async with LmtpClient(over_vllm.url) as client:
        found: list[TokenOutput] = []
        arrived = asyncio.Event()

        def sink(outputs: object) -> None:
            found.extend(outputs)  # type: ignore[call-overload]  # outputs
            arrived.set()

        handle = client.submit(GenerateRequest("a", (5,), SamplingParams(max_tokens=950, ignore_eos=True)), sink)
        async with asyncio.timeout(60):
            await arrived.wait()
            handle.cancel()
            while not found[-1].last:
                arrived.clear()
                await arrived.wait()
        assert found[-1].finish_reason == "cancelled"
        assert (
            len(await collect(client, GenerateRequest("b", (5,), SamplingParams(max_tokens=2, ignore_eos=True)))) == 2
        )
