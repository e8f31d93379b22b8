"""The embedded model under real constraints: with and without drafts and jumps, and with one that takes too long."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from lmtool import constraint
from lmtool.engine.backends import load_engine
from lmtool.engine.config import EngineConfig
from lmtool.guide.compiler import MatcherCompiler
from lmtool.guide.config import GuideConfig
from lmtool.text.tokenizer import load_tokenizer
from lmtool.tiny.path import MODEL_DIR
from lmtool.types import GenerateRequest, SamplingParams
from tests.engine.conftest import bits

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "city": {"enum": ["Berlin", "Paris", "London"]},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "city", "tags"],
    "additionalProperties": False,
}
HELD = constraint.json_schema(SCHEMA)
GREEDY = SamplingParams(max_tokens=120)
SAMPLED = SamplingParams(max_tokens=120, temperature=1.0, seed=3, top_logprobs=2)


@pytest.fixture(scope="module")
def tokenizer():
    """The embedded model's."""
    return load_tokenizer(str(MODEL_DIR))


@pytest.fixture(scope="module")
def engine_with():
    """Engines over the embedded model that can be constrained, closed at the end."""
    made = []

    def make(config=None, **settings):
        engine = load_engine(str(MODEL_DIR), EngineConfig(device="cpu", threads=1, **settings))
        made.append(engine)
        info = engine.info_now
        tokenizer_json = (MODEL_DIR / "tokenizer.json").read_text(encoding="utf-8")
        engine.guide_by(MatcherCompiler(tokenizer_json, info.vocab_size, info.eos_token_ids, config))
        return engine

    yield make
    for engine in made:
        engine.close()


def text_of(tokenizer, outputs):
    return tokenizer.decode([output.token for output in outputs if output.token is not None])


async def test_drafts_and_jumps(engine_with, run, tokenizer):
    """With drafts the same bits; with jumps a valid text, for greedy streams the same one; never a wrong one."""
    prompt = tuple(tokenizer.encode('{"name":"Anna","city":"Paris","tags":["red","green","red"]} {"name":"Ben"'))
    requests = [
        GenerateRequest(n, prompt[n:], replace(sampling, logprobs_mode=mode), constraint=HELD)
        for n, (sampling, mode) in enumerate(
            (sampling, mode) for sampling in (GREEDY, SAMPLED) for mode in ("raw", "biased")
        )
    ]
    found = {}
    for drafts in (False, True):
        for jumps in (False, True):
            engine = engine_with(speculation=drafts, jump_forward=jumps)
            found[drafts, jumps] = await run(engine, *requests)
    for request in requests:
        key = request.stream_id
        for jumps in (False, True):
            assert bits(found[True, jumps][key]) == bits(found[False, jumps][key])
        texts = [text_of(tokenizer, one[key]) for one in found.values()]
        for text in texts:
            jsonschema.validate(json.loads(text), SCHEMA)
        if request.sampling.temperature == 0:
            assert len(set(texts)) == 1


async def test_a_mask_that_takes_too_long(engine_with, run, tokenizer):
    """After three tokens over the budget the stream ends with `constraint_too_complex`; others go on to their end."""
    engine = engine_with(GuideConfig(step_seconds=0.0))
    prompt = tuple(tokenizer.encode("Hello"))
    held = GenerateRequest("held", prompt, SAMPLED, constraint=constraint.regex("[a-z]{100,200}"))
    free = GenerateRequest("free", prompt, replace(SAMPLED, max_tokens=40, ignore_eos=True))
    outputs = await run(engine, held, free)
    assert outputs["held"][-1].error_code == "constraint_too_complex"
    assert len(outputs["free"]) == 40
    assert outputs["free"][-1].finish_reason == "length"
