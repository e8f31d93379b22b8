"""Streams under real constraints."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import jsonschema
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.core import constraint
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.backends.random import load_random
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import GuideConfig
from lmtool.inference.text.text_model import TextModel
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.engine.conftest import bits


def made(**config):
    """A text model over random logits whose cache is too small for many streams, so that they make room."""
    settings = EngineConfig(threads=1, **config)
    engine = load_random(str(MODEL_DIR), settings, {"blocks": "14", "context_length": "200"}, lambda _progress: None)
    tokenizer = load_tokenizer(str(MODEL_DIR))
    info = engine.info_now
    engine.set_guide_compiler(MatcherCompiler(tokenizer.to_json(), info.vocab_size, info.eos_token_ids))
    return TextModel(engine, tokenizer), engine


@pytest.fixture(scope="module")
def models():
    """With everything that runs ahead, and without."""
    both = [made(speculation=True, jump_forward=True), made(speculation=False, jump_forward=False)]
    yield [model for model, _ in both]
    for model, _ in both:
        model.close()


SCALARS = st.one_of(
    st.tuples(st.integers(-50, 50), st.integers(0, 300)).map(
        lambda ends: {"type": "integer", "minimum": ends[0], "maximum": ends[0] + ends[1]}
    ),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["red", "green", 5, None]},
            {"const": {"a": [1, 2]}},
            {"type": "string", "maxLength": 6},
            {"type": "string", "pattern": "^[a-f]{2}-[0-9]+$"},
            {"type": "string", "format": "date"},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 2},
        ]
    ),
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 3)).map(
            lambda it: {"type": "array", "items": it[0], "minItems": it[1], "maxItems": it[1] + 2}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        st.tuples(
            st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), st.booleans(), st.sets(st.sampled_from("abcd"))
        ).map(
            lambda it: {
                "type": "object",
                "properties": it[0],
                "additionalProperties": it[1],
                "required": sorted(it[2] & it[0].keys()),
            }
        ),
    ),
    max_leaves=5,
)
PATTERNS = st.sampled_from(
    ["[0-9]{3,8}", "(ab|cd)*e?", "a*", r"\d{4}-\d{2}-\d{2}", "[A-Z][a-z]+ [A-Z][a-z]+", "(x{2}y){1,4}", "é+|ü", ".{5}"]
)
CHOICES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=5)
SAMPLING = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from([1, 2, 5, 20, 120]),
        "temperature": st.sampled_from([0.0, 1.0, 3.0]),
        "seed": st.integers(0, 1000),
        "logit_bias": st.dictionaries(st.integers(0, 1535), st.sampled_from([-100.0, -5.0, 5.0, 100.0]), max_size=20),
        "min_tokens": st.sampled_from([0, 3, 200]),
        "ignore_eos": st.booleans(),
        "stop": st.sampled_from([(), ("a",), ("1", "2", "{", " ")]),
        "stop_token_ids": st.sampled_from([(), tuple(range(3, 300))]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 100.0]),
        "presence_penalty": st.sampled_from([0.0, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, -2.0]),
        "top_k": st.sampled_from([0, 1, 3]),
        "top_p": st.sampled_from([1.0, 0.1]),
        "min_p": st.sampled_from([0.0, 0.9]),
        "logprobs_mode": st.sampled_from(["raw", "biased", "processed"]),
    }
)


def judge(kind, wanted, text, *, whole):
    """Raise unless a text matches, or, where it was cut, may still come to match."""
    text = text if whole else text.rstrip("\ufffd")  # cut within a character
    if kind == "json" and whole:
        jsonschema.validate(json.loads(text), wanted, format_checker=jsonschema.FormatChecker())
    elif kind == "regex":
        assert (re.fullmatch if whole else partial)(wanted, text), text
    elif kind == "choice":
        assert text in wanted if whole else any(one.startswith(text) for one in wanted), text


def partial(pattern, text):
    """Whether a text may be the beginning of a match."""
    return regex.fullmatch(pattern, text, partial=True)


MAKERS = {"json": constraint.json_schema, "regex": constraint.regex, "choice": constraint.choice}
HELD = st.one_of(
    SCHEMAS.map(lambda schema: ("json", schema)),
    PATTERNS.map(lambda pattern: ("regex", pattern)),
    CHOICES.map(lambda texts: ("choice", texts)),
)


async def said(model, request):
    return [output async for output in stream(model, request)]


async def crowd(model, asked):
    """Everything at once, three answers each, on top of streams that nothing holds."""
    requests = [
        GenerateRequest(
            (at, n), (5, 6, 7), SamplingParams(**{**sampling, "seed": sampling["seed"] + n}), text=True,
            constraint=MAKERS[kind](wanted),
        )
        for at, ((kind, wanted), sampling) in enumerate(asked)
        for n in range(3)
    ]  # fmt: skip
    free = [GenerateRequest(n, (9,) * 20, SamplingParams(max_tokens=60, ignore_eos=True)) for n in range(2)]
    answers = await asyncio.gather(*(said(model, one) for one in [*requests, *free]))
    return list(zip(requests, answers, strict=False))


@settings(max_examples=15)
@given(asked=st.lists(st.tuples(HELD, SAMPLING), min_size=1, max_size=3))
def test_no_answer_violates_its_constraint(models, asked):
    """Alone, in crowds, preempted, cut, biased, penalised, drafted ahead."""
    for model in models:
        for request, outputs in asyncio.run(crowd(model, asked)):
            (kind, wanted), sampling = asked[request.stream_id[0]]
            last, text = outputs[-1], "".join(output.text or "" for output in outputs)
            assert last.error is None or "exclude each other" in last.error, last.error
            if last.error is None:
                assert last.finish_reason in {"stop", "length"}
                assert len(outputs) <= sampling["max_tokens"]
                cut = bool(last.warnings) and "before its constraint had ended it" in last.warnings[-1]
                assert cut == (last.stopped_by is not None)
                judge(kind, wanted, text, whole=last.finish_reason == "stop" and not cut)


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
HELD_real_constraints = constraint.json_schema(SCHEMA)
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
        engine.set_guide_compiler(MatcherCompiler(tokenizer_json, info.vocab_size, info.eos_token_ids, config))
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
        GenerateRequest(n, prompt[n:], replace(sampling, logprobs_mode=mode), constraint=HELD_real_constraints)
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
