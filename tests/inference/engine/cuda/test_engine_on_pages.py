"""The engine over pages against the engine on CPU: ids, logprobs, SCORE, masks, CANCEL, memory that runs out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import replace

import pytest
import torch

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.engine_loader import load_engine
from tests.inference.engine.cuda.conftest import forbidden_syncs
from tests.inference.engine.guiding import StepCompiler, steps

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


@pytest.mark.parametrize(("deterministic", "cached"), [(False, 48), (True, 32)])
async def test_what_was_generated_is_kept(engine_on, run, random_ids, deterministic, cached):
    """The next turn begins with whole blocks of the last answer, too; where bits are promised, of its prompt alone."""
    engine = engine_on("small", deterministic=deterministic)
    first = GenerateRequest(1, random_ids(37, seed=1), replace(GREEDY, max_tokens=14))
    said = [output.token for output in (await run(engine, first))[1]]
    turn = GenerateRequest(2, (*first.prompt, *said, *random_ids(5, seed=2)), GREEDY)
    ours = (await run(engine, turn))[2]
    assert ours[-1].usage.cached_tokens == cached
    agree(ours, (await run(engine_on("small", prefix_cache=False), turn))[2])


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
    engine.set_guide_compiler(StepCompiler(eos=2))
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


def mixed(random_ids):
    """Streams of most kinds."""
    kinds = [
        {"repetition_penalty": 1.2},
        {"temperature": 1.0, "top_p": 0.7, "seed": 5},
        {},
        {"temperature": 1.0, "seed": 3, "top_logprobs": 4},
        {"temperature": 0.8, "seed": 4, "top_k": 9, "top_p": 0.9, "logprobs_mode": "processed"},
        {"logit_bias": {7: 2.0, 9: -1.0}, "logprobs_mode": "raw", "stop_token_ids": tuple(range(3, 40))},
        {"min_tokens": 3, "logit_bias": {2: 3.0}, "ignore_eos": False},
    ]
    return [
        GenerateRequest(
            number,
            random_ids(1 + 7 * number % 37, seed=number),
            replace(GREEDY, **{"max_tokens": 9 + number, **kind}),
        )
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("blocks", [6, 64])
async def test_steps_ahead_change_nothing(engine_on, run, random_ids, monkeypatch, blocks):
    """Begun before the last one is read, steps give each stream the same, bit for bit; with little memory, too."""
    from lmtool.inference.engine.cuda.runner import CudaRunner

    begun = []
    run_ahead = CudaRunner.run_ahead

    def noting(self, plan, ids):
        begun.append(len(plan.spans))
        return run_ahead(self, plan, ids)

    monkeypatch.setattr(CudaRunner, "run_ahead", noting)
    outputs, counts = [], []
    for ahead in (True, False):
        engine = engine_on("small", deterministic=True, prefix_cache=False, blocks=blocks, step_ahead=ahead)
        outputs.append(await run(engine, *mixed(random_ids)))
        counts.append(len(begun))
    assert outputs[0] == outputs[1]
    assert counts[0] == counts[1] > 3


class TestOnTheGpu:
    """The whole way of a model, as `lmtool serve --device cuda` takes it."""

    @pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt2"])
    async def test_float32_equals_the_cpu(self, gpu, checkpoint, engine_of, run, random_ids, architecture, caplog):
        """Greedy ids in float32 equal the CPU's up to near ties; the log says which attention was chosen."""
        config = EngineConfig(device=str(gpu), dtype="float32", max_streams=16, kv_cache_bytes=1 << 24)
        with caplog.at_level("INFO", "lmtool.inference.engine.cuda"):
            engine = load_engine(str(checkpoint(architecture)), config)
        try:
            requests = [GenerateRequest(length, random_ids(length, seed=length), GREEDY) for length in (1, 40, 130)]
            ours, theirs = await run(engine, *requests), await run(engine_of(architecture, device="cpu"), *requests)
        finally:
            engine.close()
        assert "attention on cuda:0" in caplog.text
        assert "captured decode steps" in caplog.text
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

    async def test_nothing_waits_for_the_gpu(self, gpu, engine_on, run, random_ids, monkeypatch):
        """From drawing out of logits that were begun ahead to the next pass, torch finds nothing that synchronises."""

        def watched(method):
            def call(self, *arguments):
                with contextlib.nullcontext() if arguments[-1] is None else forbidden_syncs():
                    return method(self, *arguments)

            return call

        def noting(self, runner, drawn):
            begun.append(run_ahead(self, runner, drawn))
            return begun[-1]

        begun = []
        run_ahead = watched(Engine._run_ahead)
        monkeypatch.setattr(Engine, "_compute", watched(Engine._compute))
        monkeypatch.setattr(Engine, "_run_ahead", noting)
        requests = [request for request in mixed(random_ids) if request.sampling.top_p == 1 or request.sampling.top_k]
        outputs = await run(engine_on("llama", step_ahead=True), *requests)
        assert [own[-1].error for own in outputs.values()] == [None] * 6
        assert sum(flight is not None for flight in begun) > 3

    async def test_bfloat16_steps_ahead(self, gpu, checkpoint, run, random_ids):
        """A model as it is served, deterministic: the same with steps ahead, which is the default, and without."""
        outputs = []
        for ahead in (True, False):
            config = EngineConfig(
                device=str(gpu), max_streams=16, kv_cache_bytes=1 << 24, deterministic=True, prefix_cache=False,
                speculation=False, step_ahead=ahead,
            )  # fmt: skip
            engine = load_engine(str(checkpoint("llama-packed")), config)
            try:
                outputs.append(await run(engine, *mixed(random_ids)))
            finally:
                engine.close()
        assert outputs[0] == outputs[1]

    def test_deterministic_is_refused_for_other_families(self, gpu, checkpoint):
        """A model whose own layers sum by the batch is not served with `deterministic`."""
        from lmtool.core.errors import ModelLoadError

        with pytest.raises(ModelLoadError, match="cannot be served with --deterministic"):
            load_engine(str(checkpoint("gpt2")), EngineConfig(device=str(gpu), deterministic=True))
