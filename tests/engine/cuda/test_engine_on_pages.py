"""The engine over pages against the engine on CPU: ids, logprobs, SCORE, masks, CANCEL, memory that runs out."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import torch

from lmtool.engine.backends import load_engine
from lmtool.engine.config import EngineConfig
from lmtool.types import GenerateRequest, SamplingParams, ScoreRequest
from tests.engine.guiding import StepCompiler, steps

pytestmark = pytest.mark.cuda

GREEDY = SamplingParams(max_tokens=6, ignore_eos=True, top_logprobs=2)
NEAR = 0.01
"""Nats between the two best ids below which either may win."""


def agree(ours, theirs):
    """Whether ids are equal up to the first near tie, and logprobs up to there within 1e-4."""
    for mine, other in zip(ours, theirs, strict=True):
        if mine.token != other.token:
            (_, best), (_, second) = other.top_logprobs[:2]
            assert best - second < NEAR
            return
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("recorded", [True, False])
async def test_greedy_equals_the_cpu(engine_on, engine_of, run, random_ids, recorded):
    """Greedy ids in float32 equal those of the engine on CPU up to near ties, decode steps recorded or not."""
    requests = [GenerateRequest(length, random_ids(length, seed=length), GREEDY) for length in (1, 16, 35)]
    ours = await run(engine_on("small", recorded=recorded), *requests)
    theirs = await run(engine_of("small", device="cpu"), *requests)
    for request in requests:
        agree(ours[request.stream_id], theirs[request.stream_id])


async def test_scores_equal_the_cpu(engine_on, engine_of, run, random_ids):
    """Logprobs of SCORE equal those of the engine on CPU."""
    ids = random_ids(40, seed=5)
    requests = [ScoreRequest(1, ids[:3], ids[3:]), ScoreRequest(2, ids[:20], ids[20:22])]
    ours, theirs = await run(engine_on("small"), *requests), await run(engine_of("small", device="cpu"), *requests)
    for stream in (1, 2):
        expected = [output.logprob for output in theirs[stream]]
        assert [output.logprob for output in ours[stream]] == pytest.approx(expected, abs=1e-4)


async def test_whole_blocks_of_a_prompt_are_kept(engine_on, run, random_ids):
    """A prompt that begins like an earlier one takes its whole blocks from the prefix cache, with the same ids."""
    engine = engine_on("small")
    prompt = random_ids(37, seed=1)
    first = (await run(engine, GenerateRequest(1, prompt, GREEDY)))[1]
    again = (await run(engine, GenerateRequest(2, prompt, GREEDY)))[2]
    assert (first[-1].usage.cached_tokens, again[-1].usage.cached_tokens) == (0, 32)
    agree(again, first)


async def test_preempted_streams_go_on(engine_on, engine_of, run, random_ids):
    """With blocks for little more than one stream, all of them end as on CPU."""
    requests = [GenerateRequest(seed, random_ids(14, seed=seed), GREEDY) for seed in (1, 2, 3)]
    ours = await run(engine_on("small", blocks=3), *requests)
    theirs = await run(engine_of("small", device="cpu"), *requests)
    for request in requests:
        agree(ours[request.stream_id], theirs[request.stream_id])


async def test_masks_hold(engine_on, run, random_ids):
    """A constrained stream draws only what its mask allows, its neighbours what they like."""
    engine = engine_on("small")
    engine.guide_by(StepCompiler(eos=2))
    held = GenerateRequest(1, random_ids(4, seed=1), GREEDY, constraint=steps("7,8;9,40,41"))
    outputs = await run(engine, held, GenerateRequest(2, random_ids(4, seed=1), GREEDY))
    first, second, end = (output.token for output in outputs[1])
    assert first in {7, 8}
    assert second in {9, 40, 41}
    assert end == 2
    assert len(outputs[2]) == GREEDY.max_tokens


async def test_cancel(engine_on, random_ids):
    """A stream that is told to end ends within a step, and frees its place for the next."""
    engine = engine_on("small", streams=1)
    outputs = asyncio.Queue()
    handle = engine.submit(
        GenerateRequest(1, random_ids(5, seed=1), SamplingParams(max_tokens=200, ignore_eos=True)),
        lambda batch: [outputs.put_nowait(output) for output in batch],
    )
    await asyncio.wait_for(outputs.get(), 60)
    handle.cancel()
    while not (last := await asyncio.wait_for(outputs.get(), 60)).last:
        pass
    assert last.finish_reason == "cancelled"


async def test_memory_that_runs_out_ends_no_process(engine_on, run, random_ids, monkeypatch):
    """When even the smallest step does not fit, its streams end with an error, and the engine serves the next."""
    engine = engine_on("small", recorded=False)
    forward = engine._runner.forward
    plain, calls = type(forward).logits, itertools.count()

    def scarce(self, batch, attention):
        if next(calls) < 2:
            raise torch.OutOfMemoryError("no memory")
        return plain(self, batch, attention)

    monkeypatch.setattr(type(forward), "logits", scarce)
    failed = (await run(engine, GenerateRequest(1, random_ids(5, seed=1), GREEDY)))[1]
    assert failed[-1].error_code == "out_of_memory"
    assert next(calls) == 1
    monkeypatch.undo()
    assert len((await run(engine, GenerateRequest(2, random_ids(5, seed=1), GREEDY)))[2]) == 6


async def test_deterministic_alone_and_in_a_crowd(engine_on, run, random_ids):
    """With `deterministic`, a stream's ids and logprobs are the same bit for bit alone and among others."""
    engine = engine_on("small", deterministic=True, prefix_cache=False)
    requests = [GenerateRequest(seed, random_ids(3 + 9 * seed, seed=seed), GREEDY) for seed in (0, 1, 2)]
    crowd = await run(engine, *requests)
    for request in requests:
        alone = (await run(engine, request))[request.stream_id]
        assert [(o.token, o.logprob, o.top_logprobs) for o in alone] == [
            (o.token, o.logprob, o.top_logprobs) for o in crowd[request.stream_id]
        ]


class TestOnTheGpu:
    """The whole way of a model, as `lmtool serve --device cuda` takes it."""

    @pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt2"])
    async def test_float32_equals_the_cpu(self, gpu, checkpoint, engine_of, run, random_ids, architecture, caplog):
        """Greedy ids in float32 equal the CPU's up to near ties; the log says which attention was chosen."""
        config = EngineConfig(device=str(gpu), dtype="float32", max_streams=16, kv_cache_bytes=1 << 24)
        with caplog.at_level("INFO", "lmtool.engine.cuda"):
            engine = load_engine(str(checkpoint(architecture)), config)
        try:
            requests = [GenerateRequest(length, random_ids(length, seed=length), GREEDY) for length in (1, 40, 130)]
            ours, theirs = await run(engine, *requests), await run(engine_of(architecture, device="cpu"), *requests)
        finally:
            engine.close()
        assert "attention on cuda:0" in caplog.text
        assert "recorded decode steps" in caplog.text
        for request in requests:
            agree(ours[request.stream_id], theirs[request.stream_id])

    @pytest.mark.parametrize("deterministic", [False, True])
    async def test_bfloat16(self, gpu, checkpoint, run, random_ids, deterministic):
        """A model in bfloat16 passes its checks and runs; with `deterministic`, the same alone and in a crowd."""
        config = EngineConfig(
            device=str(gpu), max_streams=16, kv_cache_bytes=1 << 24, deterministic=deterministic, prefix_cache=False
        )
        engine = load_engine(str(checkpoint("llama-packed")), config)
        try:
            requests = [GenerateRequest(seed, random_ids(11 * seed, seed=seed), GREEDY) for seed in range(1, 8)]
            crowd = await run(engine, *requests)
            alone = [(await run(engine, request))[request.stream_id] for request in requests]
        finally:
            engine.close()
        assert all(len(outputs) == GREEDY.max_tokens for outputs in crowd.values())
        if deterministic:
            for request, own in zip(requests, alone, strict=True):
                together = crowd[request.stream_id]
                assert [(o.token, o.logprob) for o in own] == [(o.token, o.logprob) for o in together]

    def test_deterministic_is_refused_for_other_families(self, gpu, checkpoint):
        """A model whose own layers sum by the batch is not served with `deterministic`."""
        from lmtool.errors import ModelLoadError

        with pytest.raises(ModelLoadError, match="cannot be served with --deterministic"):
            load_engine(str(checkpoint("gpt2")), EngineConfig(device=str(gpu), deterministic=True))
