"""A stream's ids and logprobs do not depend on its neighbours: bit for bit, on CPU, in every dtype that is served."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.batch_invariant import packing_works
from tests.inference.engine.conftest import bits

SUBJECTS = {
    "greedy": SamplingParams(max_tokens=24, ignore_eos=True, top_logprobs=3),
    "seeded": SamplingParams(
        max_tokens=24, ignore_eos=True, temperature=1.3, top_p=0.9, seed=7, repetition_penalty=1.1, top_logprobs=5
    ),
    "scored": None,
}


def subject(kind, ids):
    """The request under test, over a prompt that takes more than one chunk."""
    sampling = SUBJECTS[kind]
    return (
        ScoreRequest("subject", ids[:1], ids[1:], top_logprobs=2)
        if sampling is None
        else GenerateRequest("subject", ids, sampling)
    )


BFLOAT16 = {"dtype": "bfloat16"}
WAYS = {"compiled": {}, "lean": {"compiled": False}, "int8": {"quantize": "int8"}, "int4": {"quantize": "int4"}}
WAYS["bfloat16"] = BFLOAT16
"""How an engine computes: settings of `engine_of`. Processors without bfloat16 widen it in the kernels."""
if packing_works(torch.bfloat16):  # else torch's own products of it, of which nothing is known
    WAYS["oneDNN bfloat16"] = BFLOAT16 | {"compiled": False}


IN_BFLOAT16 = [("llama", "greedy"), ("llama-tied", "seeded"), ("llama-packed", "scored"), ("mistral", "seeded")]
IN_BFLOAT16 += [("qwen2", "scored"), ("qwen3", "greedy"), ("gpt2", "seeded"), ("gpt2-packed", "greedy")]


@pytest.mark.parametrize(
    ("architecture", "kind", "way"),
    [
        ("llama", "greedy", "compiled"),
        ("llama", "greedy", "lean"),
        ("llama", "seeded", "int8"),
        ("llama", "scored", "compiled"),
        ("llama", "scored", "lean"),
        ("llama-packed", "greedy", "compiled"),
        ("llama-packed", "seeded", "lean"),
        ("llama-packed", "scored", "int8"),
        ("llama-tied", "greedy", "compiled"),
        ("llama-tied", "greedy", "lean"),
        ("gpt2", "greedy", "compiled"),
        ("gpt2", "scored", "int8"),
        ("gpt2-packed", "seeded", "compiled"),
        ("gpt2-packed", "seeded", "lean"),
        ("gemma2", "seeded", "compiled"),
        ("mistral", "greedy", "compiled"),
        ("mistral", "seeded", "int8"),
        ("llama-packed", "greedy", "int4"),
        ("llama-tied", "scored", "int4"),
        ("gpt2", "seeded", "int4"),
        ("qwen2", "seeded", "compiled"),
        ("qwen2", "seeded", "lean"),
        ("qwen3", "scored", "compiled"),
        ("qwen3", "scored", "lean"),
        *((architecture, kind, "bfloat16") for architecture, kind in IN_BFLOAT16),
        ("llama-packed", "greedy", "oneDNN bfloat16"),
        ("qwen2", "seeded", "oneDNN bfloat16"),
        ("gpt2-packed", "seeded", "oneDNN bfloat16"),
        ("gemma2", "seeded", "bfloat16"),
    ],
)
async def test_alone_and_in_a_crowd(architecture, kind, way, engine_of, run, random_ids):
    """Alone, among 5, and among 40 of all kinds and lengths, a stream gives the same bits."""
    if way not in WAYS:
        pytest.skip("oneDNN packs no bfloat16 on this processor")
    engine = engine_of(architecture, **WAYS[way])
    request = subject(kind, random_ids(70, seed=1))
    alone = bits((await run(engine, request))["subject"])
    for crowd in (4, 39):
        neighbours = [
            GenerateRequest(
                i, random_ids(1 + 13 * i % 100, seed=i), SamplingParams(max_tokens=1 + i, temperature=i % 3)
            )
            if i % 4
            else ScoreRequest(i, random_ids(3, seed=i), random_ids(20 + i, seed=i))
            for i in range(crowd)
        ]
        split = crowd // 2
        outputs = await run(engine, *neighbours[:split], request, *neighbours[split:])
        assert bits(outputs["subject"]) == alone


@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=12),
    length=st.integers(1, 150),
    budget=st.sampled_from([1, 64, 256]),
    architecture=st.sampled_from(["llama", "gpt2"]),
    way=st.sampled_from(sorted(WAYS)),
)
@settings(max_examples=18, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_crowd(lengths, length, budget, architecture, way, engine_of, run, random_ids, runner):
    """Whatever the lengths around it and the step's token budget, a seeded stream gives the same bits."""
    request = GenerateRequest("subject", random_ids(length, seed=5), SUBJECTS["seeded"])
    alone = bits(runner.run(run(engine_of(architecture, **WAYS[way]), request))["subject"])
    engine = engine_of(architecture, max_batch_tokens=budget, **WAYS[way])
    neighbours = [
        GenerateRequest(i, random_ids(n, seed=n), SamplingParams(max_tokens=9)) for i, n in enumerate(lengths)
    ]
    assert bits(runner.run(run(engine, *neighbours, request))["subject"]) == alone


@pytest.mark.parametrize("architecture", ["llama", "llama-packed"])
async def test_preemption(architecture, engine_of, run, random_ids):
    """A stream that was preempted for lack of memory and computed again gives the same bits."""
    request = GenerateRequest("subject", random_ids(40, seed=3), SamplingParams(max_tokens=60, ignore_eos=True))
    alone = bits((await run(engine_of(architecture), request))["subject"])
    block = {"llama": 16 * 3 * 2 * 2 * 8 * 4, "llama-packed": 16 * 6 * 2 * 2 * 64 * 4}[architecture]
    small = engine_of(architecture, kv_cache_bytes=16 * block)
    neighbours = [
        GenerateRequest(i, random_ids(30 + i, seed=i), SamplingParams(max_tokens=90, ignore_eos=True)) for i in range(5)
    ]
    outputs = await run(small, *neighbours, request)
    assert bits(outputs["subject"]) == alone
    assert [outputs[i][-1].finish_reason for i in range(5)] == ["length"] * 5


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "mistral", "llama-packed"])
@pytest.mark.parametrize("kind", ["seeded", "scored"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_kept_prefix(architecture, kind, dtype, engine_of, run, random_ids):
    """A stream that begins with kept chunks gives the same bits as one that computes everything."""
    ids = random_ids(150, seed=1)
    request = subject(kind, ids) if kind == "seeded" else ScoreRequest("subject", ids[:140], ids[140:])
    computed = await run(engine_of(architecture, dtype=dtype, prefix_cache=False), request)
    engine = engine_of(architecture, dtype=dtype)
    await run(engine, GenerateRequest("first", (*ids[:135], 5), SamplingParams(max_tokens=3)))
    kept = await run(engine, request)
    assert bits(kept["subject"]) == bits(computed["subject"])
    assert (kept["subject"][-1].usage.cached_tokens, computed["subject"][-1].usage.cached_tokens) == (128, 0)


async def test_branches_at_once(engine_of, run, random_ids):
    """Of many streams with one beginning only the first computes it; all give the bits that they give alone."""
    prefix = random_ids(130, seed=7777)  # no other prompt begins like this
    branches = [GenerateRequest(i, (*prefix, 3 + i), SamplingParams(max_tokens=6, ignore_eos=True)) for i in range(8)]
    alone = [(await run(engine_of("llama", prefix_cache=False), branch))[branch.stream_id] for branch in branches]
    engine = engine_of("llama")
    together = await run(engine, *branches)
    assert [bits(together[i]) for i in range(8)] == [bits(one) for one in alone]
    assert [together[i][-1].usage.cached_tokens for i in range(8)] == [0] + [128] * 7


@pytest.mark.parametrize("compiled", [True, False])
def test_it_is_said(engine_of, compiled):
    """The description says whether it holds: for all but mixtures of experts, whose experts get rows of any stream."""
    for architecture, invariant in (("llama", True), ("gpt2", True), ("gemma", True), ("mixtral", False)):
        assert engine_of(architecture, compiled=compiled).info_now.batch_invariant is invariant, architecture
