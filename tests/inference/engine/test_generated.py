"""A request with `generated` goes on, to the bit, as the stream that generated these ids went on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lmtool.core import constraint
from lmtool.core.interfaces import tokenizer_of
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, NamedProcessor, SamplingParams, Usage
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.composition import Loader
from tests.inference.engine.conftest import bits
from tests.inference.engine.guiding import StepCompiler, steps

PROMPT = 70
"""Ids of the prompts: more than one chunk."""
TOKENS = 24
EOS = 2
BASE = SamplingParams(max_tokens=TOKENS, ignore_eos=True, top_logprobs=3)
HOT = replace(BASE, temperature=1.3, seed=7)
KINDS = {
    "greedy": BASE,
    "seeded": HOT,
    "truncated": replace(HOT, top_p=0.9, top_k=20, min_p=0.01),
    "repetition": replace(BASE, repetition_penalty=1.4),
    "presence": replace(HOT, presence_penalty=1.5, frequency_penalty=0.7),
    "biased": replace(HOT, logit_bias={5: 3.0, 9: -100.0}, logprobs_mode="raw"),
    "processed": replace(HOT, logprobs_mode="processed", frequency_penalty=0.5),
    "min_tokens": replace(HOT, ignore_eos=False, min_tokens=20, stop_token_ids=tuple(range(40, 60))),
}
CUTS = (1, 2, 9, 20, 23)
WAYS = {"compiled": {}, "plain": {"compiled": False}, "ahead": {"speculation": False}, "int8": {"quantize": "int8"}}


async def whole(engine, run, request):
    """The ids of a stream's outputs and the outputs."""
    outputs = (await run(engine, request))[request.stream_id]
    return [output.token for output in outputs], outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
async def test_goes_on_bit_for_bit(engine_of, run, random_ids, kind, way):
    """Cut anywhere, its ids, logprobs and alternatives are those of the stream that was not cut."""
    engine = engine_of("llama", **WAYS[way])
    request = GenerateRequest("s", random_ids(PROMPT, seed=4), KINDS[kind])
    ids, outputs = await whole(engine, run, request)
    cuts = [cut for cut in CUTS if cut < len(ids)]
    assert len(cuts) > 3
    rest = await run(engine, *(replace(request, stream_id=cut, generated=tuple(ids[:cut])) for cut in cuts))
    for cut in cuts:
        assert bits(rest[cut]) == bits(replace(output, stream_id=cut) for output in outputs[cut:])
        assert rest[cut][-1].usage.completion_tokens == len(ids) - cut


@pytest.mark.parametrize("architecture", ["gpt2", "mistral", "qwen3", "gemma2", "llama-packed"])
async def test_other_architectures(engine_of, run, random_ids, architecture):
    """Sliding windows, learned positions and packed layers compute what they have again with the same bits."""
    engine = engine_of(architecture)
    request = GenerateRequest("s", random_ids(PROMPT, seed=4), KINDS["truncated"])
    ids, outputs = await whole(engine, run, request)
    for cut in CUTS:
        assert bits((await run(engine, replace(request, generated=tuple(ids[:cut]))))["s"]) == bits(outputs[cut:])


async def test_in_a_crowd_that_makes_room(engine_of, run, random_ids):
    """Streams that go on are preempted and computed again like any other."""
    engine = engine_of("llama", kv_cache_bytes=600_000, prefix_cache=False, max_batch_tokens=64)
    request = GenerateRequest("s", random_ids(PROMPT, seed=4), KINDS["presence"])
    ids, outputs = await whole(engine, run, request)
    requests = [replace(request, stream_id=n, generated=tuple(ids[: n % TOKENS])) for n in range(60)]
    crowd = await run(engine, *requests)
    for n in range(60):
        assert bits(crowd[n]) == bits(replace(output, stream_id=n) for output in outputs[n % TOKENS :])


@pytest.mark.parametrize("way", WAYS)
async def test_processors_with_state(engine_of, run, random_ids, plugin, way):
    """The state of logits processors is that of the stream that was not cut."""
    engine = engine_of("llama", **WAYS[way])
    request = GenerateRequest("s", random_ids(PROMPT, seed=4), HOT, logits_processors=(NamedProcessor("walk"),))
    ids, outputs = await whole(engine, run, request)
    assert ids != (await whole(engine, run, replace(request, logits_processors=())))[0]
    rest = await run(engine, *(replace(request, stream_id=cut, generated=tuple(ids[:cut])) for cut in CUTS))
    for cut in CUTS:
        assert bits(rest[cut]) == bits(replace(output, stream_id=cut) for output in outputs[cut:])


async def test_a_processor_whose_state_is_lost(engine_of, run, plugin):
    """Refuses to go on, and the stream tells no seed: nobody is to try."""
    request = GenerateRequest("s", (3, 4), HOT, logits_processors=(NamedProcessor("forget"),), resumable=True)
    ids, outputs = await whole(engine_of(), run, request)
    assert len(ids) == TOKENS
    assert {output.seed for output in outputs} == {None}
    (refused,) = (await run(engine_of(), replace(request, generated=tuple(ids[:5]))))["s"]
    assert (refused.error_code, refused.usage) == ("invalid_request", None)
    assert "the logits processor forget cannot go on behind generated ids" in refused.error
    (failed,) = (
        await run(engine_of(), replace(request, logits_processors=(NamedProcessor("stumble"),), generated=(5, 6)))
    )["s"]
    assert "stumble failed: ValueError: 2 are too many" in failed.error


@pytest.mark.parametrize("sluggish", [False, True])
async def test_constraints(checkpoint, run, sluggish):
    """The constraint is advanced over what counts as generated before anything is sampled."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    engine.set_guide_compiler(StepCompiler(EOS, sluggish=sluggish))
    try:
        constraint = steps("7,8,9;10,11;12,13,14;15,16;17,18;19,20")
        request = GenerateRequest("s", (3, 4, 5), HOT, constraint=constraint)
        ids, outputs = await whole(engine, run, request)
        assert ids[-1] == EOS
        assert len(ids) == 7
        for cut in range(7):
            rest = (await run(engine, replace(request, generated=tuple(ids[:cut]))))["s"]
            assert bits(rest) == bits(outputs[cut:])
        (ended,) = (await run(engine, replace(request, generated=tuple(ids))))["s"]
        assert (ended.token, ended.finish_reason) == (None, "stop")
        (wrong,) = (await run(engine, replace(request, generated=(7, 12))))["s"]
        assert (wrong.error_code, wrong.usage) == ("invalid_request", None)
        assert "generated has 12 at index 1, which the constraint forbids" in wrong.error
    finally:
        engine.close()


class TestEndings:
    """Where nothing is left to generate."""

    async def test_the_limit_is_reached(self, engine_of, run):
        """As many ids as `max_tokens` end with `length`, without a token."""
        request = GenerateRequest("s", (3, 4, 5), BASE, generated=(6,) * TOKENS)
        (output,) = (await run(engine_of(), request))["s"]
        assert (output.token, output.finish_reason, output.usage) == (None, "length", Usage(3, 0, 0))

    async def test_the_context_is_full(self, engine_of, run):
        """So do prompt and ids that fill the context."""
        sampling = replace(BASE, max_tokens=500)
        full = GenerateRequest("s", (3,) * 200, sampling, generated=(6,) * 56)
        nearly = GenerateRequest("t", (3,) * 200, sampling, generated=(6,) * 55)
        outputs = await run(engine_of(), full, nearly)
        assert [(output.token is None, output.finish_reason) for output in outputs["s"]] == [(True, "length")]
        assert [output.finish_reason for output in outputs["t"]] == ["length"]
        assert outputs["t"][0].token is not None

    @pytest.mark.parametrize("sampling", [replace(BASE, ignore_eos=False), replace(BASE, stop_token_ids=(EOS,))])
    async def test_a_stop_id_is_the_last(self, engine_of, run, sampling):
        """A stream that a stop id had ended ends with `stop`, without a token."""
        (output,) = (await run(engine_of(), GenerateRequest("s", (3, EOS), sampling, generated=(6, EOS))))["s"]
        assert (output.token, output.finish_reason) == (None, "stop")

    async def test_eos_is_an_id_like_others(self, engine_of, run):
        """Where it does not end the stream it may stand anywhere, and so it may in the prompt."""
        request = GenerateRequest("s", (3, EOS), BASE, generated=(6, EOS, 7, EOS))
        assert len((await run(engine_of(), request))["s"]) == TOKENS - 4


class TestBadInput:
    """Refused by name, before any work."""

    @pytest.mark.parametrize(
        ("sampling", "generated", "code", "words"),
        [
            (replace(BASE, max_tokens=2), (5, 6, 7), "invalid_request", "generated has 3 ids, more than max_tokens"),
            (BASE, (5, 101), "unknown_token", "token id 101 in generated is not in the vocabulary"),
            (BASE, (-1, 5), "unknown_token", "token id -1 in generated"),
            (replace(BASE, max_tokens=999), (5,) * 254, "context_overflow", "generated has 254 ids, which do not fit"),
            (
                replace(BASE, ignore_eos=False),
                (EOS, 5),
                "invalid_request",
                "generated has 2 at index 0, an id that ends",
            ),
        ],
    )
    async def test_generated(self, engine_of, run, sampling, generated, code, words):
        """The sentence names the field, the value and what was expected."""
        (output,) = (await run(engine_of(), GenerateRequest("s", (3, 4, 5), sampling, generated=generated)))["s"]
        assert output.error_code == code
        assert words in output.error


class TestSeed:
    """What another request needs to go on with a stream that draws."""

    async def test_is_told_once(self, engine_of, run):
        """With `resumable` the first output alone bears the seed: the request's, or the one that was drawn."""
        hot = replace(HOT, seed=None)
        own = GenerateRequest("own", (3, 4), HOT, resumable=True)
        drawn = GenerateRequest("drawn", (3, 4), hot, resumable=True)
        outputs = await run(engine_of(), own, drawn, GenerateRequest("untold", (3, 4), hot))
        assert [output.seed for output in outputs["own"]] == [7] + [None] * (TOKENS - 1)
        seed = outputs["drawn"][0].seed
        assert 0 <= seed < 2**53
        assert (
            {output.seed for output in outputs["drawn"][1:]} == {output.seed for output in outputs["untold"]} == {None}
        )

    async def test_carries_on_a_stream_without_one(self, engine_of, run):
        """With the seed that was told, the rest is drawn as it would have been."""
        request = GenerateRequest("s", (3, 4), replace(HOT, seed=None), resumable=True)
        ids, outputs = await whole(engine_of(), run, request)
        told = replace(HOT, seed=outputs[0].seed)
        for cut in CUTS:
            rest = (await run(engine_of(), GenerateRequest("s", (3, 4), told, generated=tuple(ids[:cut]))))["s"]
            assert bits(rest) == bits(outputs[cut:])

    async def test_with_an_ending_without_a_token(self, engine_of, run):
        """It is on the first output, whatever that is."""
        (output,) = (
            await run(engine_of(), GenerateRequest("s", (3,), SamplingParams(max_tokens=0, seed=4), resumable=True))
        )["s"]
        assert output.seed == 4


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9, "pattern": "^[a-zé🙂]+$"},
        "city": {"enum": ["Berlin", "Paris", "London"]},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "city", "tags"],
    "additionalProperties": False,
}
FREE = SamplingParams(max_tokens=40, temperature=1.5, seed=5, top_logprobs=3)
TEXTS = {
    "schema": (constraint.json_schema(SCHEMA), replace(FREE, max_tokens=80)),
    "schema, hot": (constraint.json_schema(SCHEMA), replace(FREE, max_tokens=80, temperature=30.0)),
    "schema, raw": (constraint.json_schema(SCHEMA), replace(FREE, max_tokens=80, temperature=9.0, logprobs_mode="raw")),
    "schema, cut": (constraint.json_schema(SCHEMA), replace(FREE, stop=('"city":"', "zz"))),
    "regex": (constraint.regex("(é|ü|🙂){4,12} [0-9]{3}"), FREE),
    "choice": (constraint.choice(["a long choice", "a long chain", "another"]), FREE),
    "bytes": (None, replace(FREE, logit_bias=dict.fromkeys(range(3, 259), 20.0), ignore_eos=True)),
    "late stop": (None, replace(FREE, max_tokens=200, stop=("qzq", "\ufffd\ufffd\ufffd\ufffd\ufffd"))),
}


@pytest.fixture(scope="module", params=[True, False], ids=["ahead", "plain"])
def text_model(request):
    """Texts and constraints over the embedded model's vocabulary, with everything that runs ahead and without."""
    settings = EngineConfig(device="cpu", threads=1, speculation=request.param, jump_forward=request.param)
    model = Loader(settings).load(str(MODEL_DIR), lambda _progress: None)
    yield model
    model.close()


async def said(model, request):
    return [replace(output, usage=None) async for output in stream(model, request)]


@pytest.mark.parametrize("kind", TEXTS)
async def test_texts(text_model, kind):
    """Open characters, text held back before a stop string, forced ids and the answer's check go on at the seam."""
    constraint_, sampling = TEXTS[kind]
    request = GenerateRequest("s", "Once upon a time", sampling, text=True, constraint=constraint_)
    outputs = await said(text_model, request)
    assert len(outputs) > 2
    ids = [output.token for output in outputs if output.token is not None]
    for cut in range(1, len(ids), 1 + len(ids) // 20):
        assert await said(text_model, replace(request, generated=tuple(ids[:cut]))) == outputs[cut:], cut


async def test_a_stop_string_across_the_seam(text_model):
    """A stop string that begins in what is generated and ends behind it cuts the stream where it would have."""
    free = GenerateRequest("s", "Once upon a time", replace(FREE, temperature=0.0), text=True)
    text = "".join(output.text for output in await said(text_model, free))
    request = replace(free, sampling=replace(free.sampling, stop=(text[40:56], text[40:48] + "\0")))
    outputs = await said(text_model, request)
    ids = [output.token for output in outputs]
    assert outputs[-1].stopped_by == text[40:56]
    assert "".join(output.text for output in outputs) == text[:40]
    assert [output.text for output in outputs[-4:]].count("") >= 2, "text was held back over several tokens"
    for cut in range(1, len(ids)):
        assert await said(text_model, replace(request, generated=tuple(ids[:cut]))) == outputs[cut:], cut


async def test_a_stop_string_in_what_is_generated(text_model):
    """At its end the stream ends with `stop`, without a token; before it the request is refused."""
    sampling = replace(FREE, stop=("b",))
    ids = tuple(tokenizer_of(text_model).encode("a b", special=False))
    request = GenerateRequest("s", (5, 6), sampling, generated=ids)
    (ended,) = await said(text_model, request)
    assert (ended.token, ended.finish_reason, ended.stopped_by) == (None, "stop", "b")
    (refused,) = await said(text_model, replace(request, generated=(*ids, 9)))
    assert refused.error_code == "invalid_request"
    assert f"generated goes on at index {len(ids)}, behind the stop string 'b'" in refused.error


async def test_a_long_beginning_is_refused_before_it_is_read(text_model):
    """More ids than the context has are not turned into text."""
    request = GenerateRequest("s", "a", replace(FREE, max_tokens=10**6), text=True, generated=(9,) * 10**6)
    async with asyncio.timeout(2):
        (refused,) = await said(text_model, request)
    assert refused.error_code == "context_overflow"
