"""Drafts and forced tokens change how many steps a stream takes, and nothing that it says."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.batch_invariant import packing_works
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.speculation import Drafter
from tests.inference.engine.conftest import bits, no_compiler
from tests.inference.engine.guiding import StepCompiler, steps

EOS = 2
TWENTY = SamplingParams(max_tokens=20, ignore_eos=True)
SAMPLINGS = [
    TWENTY,
    replace(TWENTY, temperature=0.3, seed=4, top_logprobs=3),
    SamplingParams(max_tokens=25, temperature=0.8, top_p=0.9, seed=5, logprobs_mode="processed"),
    replace(TWENTY, min_tokens=5, ignore_eos=False, stop_token_ids=(7, 8, 9), logit_bias={2: 4.0}),
    replace(TWENTY, presence_penalty=0.5),
    replace(TWENTY, logprobs_mode="raw", logit_bias={11: 3.0, 12: 2.0}, top_logprobs=2),
]
CONSTRAINTS = [None, None, "7,8;40,41,64;9", "5;6,7;5;6,7;5;6,7;5;6,7;5", "30;31;32,33;30;31;32"]
BLOCK = 16 * 3 * 2 * 2 * 8 * 4
"""Bytes of a block of the small Llama's keys and values."""


class Known:
    """Drafts what a stream said when it ran without drafts, wrong here and there: as many as it is asked for."""

    texts: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    random = Random(0)

    def propose(self, tokens, share, most):
        """The right ids as far as known, some of them replaced."""
        for prompt, text in self.texts.items():
            said = tokens[len(prompt) :]
            if tuple(tokens[: len(prompt)]) == prompt and text[: len(said)] == said:
                draft = text[len(said) : len(said) + max(min(most, self.random.randrange(9)), 0)]
                return [token if self.random.random() < 0.8 else 3 + token % 90 for token in draft]
        return [self.random.randrange(3, 101) for _ in range(max(min(most, self.random.randrange(4)), 0))]

    def learn(self, drafted, right, length):
        """Count what came true."""
        assert 0 <= right <= drafted
        Known.tried += drafted
        Known.right += right

    tried = right = 0


class Forcing(StepCompiler):
    """Guides that tell what is forced, as the real ones do."""

    def compile(self, constraint):
        answer = super().compile(constraint)
        guide = answer.result()
        guide.forced = partial(_forced, guide)
        return answer


def _forced(guide):
    ahead = []
    for allowed in guide.steps[guide.at :]:
        if len(allowed) > 1:
            break
        ahead += allowed
    return ahead


def engine_with(checkpoint, architecture="llama", **config):
    """An engine over a small model; its own, to be closed."""
    return load_engine(str(checkpoint(architecture)), EngineConfig(threads=1, dtype="float32", **config))


@pytest.fixture(scope="module")
def pair(checkpoint):
    """Two engines over one model: with nothing but plain decode, and with drafts and jumps in little memory."""
    plain = engine_with(checkpoint, speculation=False, jump_forward=False)
    drafting = engine_with(checkpoint, kv_cache_bytes=40 * BLOCK, max_batch_tokens=80, max_streams=5)
    plain.set_guide_compiler(StepCompiler(EOS))
    drafting.set_guide_compiler(Forcing(EOS, sluggish=True))
    yield plain, drafting
    plain.close()
    drafting.close()


@pytest.mark.parametrize(
    ("architecture", "dtype", "compiled"),
    [
        ("llama", "float32", True),
        ("llama", "float32", False),
        ("llama-packed", "float32", False),
        ("llama-packed", "bfloat16", True),
        ("llama-packed", "bfloat16", False),
        ("gpt2", "float32", True),
        ("gemma2", "float32", True),
    ],
)
async def test_drafted_rows_have_the_bits_of_plain_decode(
    checkpoint, run, random_ids, architecture, dtype, compiled, monkeypatch
):
    """Ids, logprobs and alternatives of a stream are the same bits with drafts of any length, right or wrong."""
    if not compiled and dtype == "bfloat16" and not packing_works(torch.bfloat16):
        pytest.skip("no product of bfloat16 is the same in any batch here, and the log warns of it")
    folder = str(checkpoint(architecture))
    with contextlib.nullcontext() if compiled else no_compiler():
        plain = load_engine(folder, EngineConfig(threads=1, dtype=dtype, speculation=False))
        drafting = load_engine(folder, EngineConfig(threads=1, dtype=dtype))
    requests = [
        GenerateRequest(n, random_ids(5 + 17 * n, seed=n), replace(SAMPLINGS[n % 3], max_tokens=40)) for n in range(6)
    ]
    try:
        expected = {n: (await run(plain, request))[n] for n, request in enumerate(requests)}
        monkeypatch.setattr("lmtool.inference.engine.stream.Drafter", Known)
        Known.texts = {request.prompt: [o.token for o in expected[request.stream_id]] for request in requests}
        Known.tried = Known.right = 0
        for own in requests:
            assert bits((await run(drafting, own))[own.stream_id]) == bits(expected[own.stream_id])
        together = await run(drafting, *requests)
        assert {n: bits(outputs) for n, outputs in together.items()} == {n: bits(own) for n, own in expected.items()}
        assert Known.tried > Known.right > 100
    finally:
        plain.close()
        drafting.close()


async def _random_traffic(engine, requests, random):
    """Run all, some paused for a while, some cancelled: outputs by stream."""
    outputs = {request.stream_id: [] for request in requests}
    done, left = asyncio.Event(), len(requests)

    def sink(batch):
        nonlocal left
        for output in batch:
            outputs[output.stream_id].append(output)
            left -= output.last
        if not left:
            done.set()

    paused = []
    for request in requests:
        handle = engine.submit(request, sink)
        if random.random() < 0.3:
            handle.pause()
            paused.append(handle)
        if random.random() < 0.15:
            asyncio.get_running_loop().call_later(random.random() / 50, handle.cancel)
        if random.random() < 0.3:
            await asyncio.sleep(0)
    for handle in paused:
        handle.resume()
    await asyncio.wait_for(done.wait(), 60)
    return outputs


def legal(constraint, ids, finished):
    """Whether these ids are a beginning of what `StepCompiler` allows, and the whole of it if `finished`."""
    allowed = [{int(one) for one in step.split(",")} for step in constraint.split(";")] + [{EOS}]
    fits = len(ids) <= len(allowed) and all(token in step for token, step in zip(ids, allowed, strict=False))
    return fits and (not finished or len(ids) == len(allowed))


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 90), st.integers(0, 5), st.integers(0, 4), st.integers(-1, 1), st.booleans()),
        min_size=1,
        max_size=9,
    ),
    seed=st.integers(0, 1000),
    guesses=st.sampled_from([Drafter, Known]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_traffic(shapes, seed, guesses, pair, run, random_ids, runner, monkeypatch):
    """Guided or not, seeded or greedy, paused, cancelled or preempted: the ids and logprobs of plain decode."""
    plain, drafting = pair
    requests = []
    for n, (length, kind, held, priority, repeats) in enumerate(shapes):
        prompt = random_ids(length, seed=n) if not repeats else (*random_ids(5, seed=n),) * (length // 5 + 1)
        text = CONSTRAINTS[held]
        requests.append(GenerateRequest(n, prompt, SAMPLINGS[kind], constraint=text and steps(text), priority=priority))
    expected = {request.stream_id: runner.run(run(plain, request))[request.stream_id] for request in requests}
    with monkeypatch.context() as patched:
        patched.setattr("lmtool.inference.engine.stream.Drafter", guesses)
        Known.texts = {request.prompt: [o.token for o in expected[request.stream_id]] for request in requests}
        came = runner.run(_random_traffic(drafting, requests, Random(seed)))
    for request in requests:
        own, other = bits(came[request.stream_id]), bits(expected[request.stream_id])
        ids = [output.token for output in own if output.token is not None]
        if own[-1].finish_reason == "cancelled":
            assert ids == [output.token for output in other][: len(ids)]
        else:
            assert own == other
        if request.constraint is not None:
            whole = own[-1].finish_reason == "stop" and own[-1].stopped_by is None
            assert legal(request.constraint.text, ids, whole)
    scheduler = drafting._scheduler
    assert (scheduler.running, scheduler.waiting, scheduler._blocks.free) == (0, 0, scheduler._blocks.allocator.total)


async def test_a_stream_that_repeats_itself_takes_fewer_steps(checkpoint, run, random_ids):
    """A loop is noticed: the ids of plain decode in a fraction of its steps, and usage counts them all."""
    engine = engine_with(checkpoint, speculation=True)
    try:
        request = GenerateRequest(1, random_ids(4, seed=1), replace(TWENTY, max_tokens=200, logit_bias={9: 100.0}))
        steps_taken = _count_steps(engine)
        outputs = (await run(engine, request))[1]
        assert [output.token for output in outputs] == [9] * 200
        assert outputs[-1].usage.completion_tokens == 200
        assert steps_taken() < 60
    finally:
        engine.close()


def _count_steps(engine):
    count, step = 0, engine._scheduler.plan

    def plan():
        nonlocal count
        made = step()
        count += bool(made.spans)
        return made

    engine._scheduler.plan = plan
    return lambda: count


@pytest.mark.parametrize("mode", ["biased", "raw", "processed"])
@pytest.mark.parametrize("maximum", [50, 6, 5, 4, 3, 1])
async def test_jump_forward(checkpoint, run, mode, maximum):
    """Forced ids come in one go, with the ids, logprobs, ending and usage that they have when drawn one by one."""
    text = "7;8,9;10;11;12;13,14;15;16"
    sampling = SamplingParams(max_tokens=maximum, logprobs_mode=mode, temperature=0.5, seed=3, top_logprobs=2)
    request = GenerateRequest(0, (3, 4, 5), sampling, constraint=steps(text))
    results, counts = [], []
    for jumps in (False, True):
        engine = engine_with(checkpoint, jump_forward=jumps, speculation=False)
        engine.set_guide_compiler(Forcing(EOS))
        steps_taken = _count_steps(engine)
        results.append((await run(engine, request))[0])
        counts.append(steps_taken())
        engine.close()
    assert bits(results[1]) == bits(results[0])
    assert results[1][-1].usage == results[0][-1].usage
    assert len(results[1]) == min(maximum, 9)
    assert counts[1] < counts[0] or maximum <= 3


async def test_jump_forward_with_penalties(checkpoint, run):
    """Penalties count forced ids before the next one is drawn."""
    sampling = SamplingParams(max_tokens=9, frequency_penalty=3.0, repetition_penalty=2.0, logprobs_mode="raw")
    request = GenerateRequest(0, (3, 4), sampling, constraint=steps("7;7;8;8,7,9;7;9,7,8;7,8,9"))
    results = []
    for jumps in (False, True):
        engine = engine_with(checkpoint, jump_forward=jumps)
        engine.set_guide_compiler(Forcing(EOS))
        results.append((await run(engine, request))[0])
        engine.close()
    assert bits(results[1]) == bits(results[0])
