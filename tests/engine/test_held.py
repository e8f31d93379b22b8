"""Whole engines under constraints: whatever else a request asks for, its text matches, or is the beginning of a match.

The model's logits are random, so that nothing but the constraint holds the text; `jsonschema` and `regex` judge.
"""

from __future__ import annotations

import asyncio
import json
import re

import jsonschema
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool import constraint
from lmtool.engine.config import EngineConfig
from lmtool.engine.random_backend import load_random
from lmtool.guide.compiler import MatcherCompiler
from lmtool.interfaces import stream
from lmtool.text.text_model import TextModel
from lmtool.text.tokenizer import load_tokenizer
from lmtool.tiny.path import MODEL_DIR
from lmtool.types import GenerateRequest, SamplingParams


def made(**config):
    """A text model over random logits whose cache is too small for many streams, so that they make room."""
    settings = EngineConfig(threads=1, **config)
    engine = load_random(str(MODEL_DIR), settings, {"blocks": "14", "context_length": "200"}, lambda _progress: None)
    tokenizer = load_tokenizer(str(MODEL_DIR))
    info = engine.info_now
    engine.guide_by(MatcherCompiler(tokenizer.to_json(), info.vocab_size, info.eos_token_ids))
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
