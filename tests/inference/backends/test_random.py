"""The model that costs nothing, through the real engine."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.core import constraint
from lmtool.core.errors import UsageError
from lmtool.core.types import GenerateRequest, NamedProcessor, SamplingParams, ScoreRequest
from lmtool.inference.backends.random import load_random
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR

STORIES = str(Path(__file__).parents[2] / "data/stories260K")


@pytest.fixture
def load():
    """Make an engine that is closed at the end."""
    made = []

    def make(model="nothing", **options):
        engine = load_random(model, EngineConfig(threads=1), {k: str(v) for k, v in options.items()}, lambda _p: None)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def ids(outputs):
    return [output.token for output in outputs]


async def test_a_stream_depends_on_prompt_and_seed_alone(load, run):
    """The same again, also among others; other ids for another prompt and for another seed."""
    engine, other = load(vocab_size=500), load(vocab_size=500, seed=1)
    sampling = SamplingParams(max_tokens=20)
    alone = await run(engine, GenerateRequest("a", (1, 2), sampling))
    crowd = await run(engine, *(GenerateRequest(name, (1, n + 2), sampling) for n, name in enumerate("abc")))
    assert ids(crowd["a"]) == ids(alone["a"])
    assert ids(crowd["b"]) != ids(alone["a"])
    assert ids((await run(other, GenerateRequest("a", (1, 2), sampling)))["a"]) != ids(alone["a"])


async def test_tokens_are_uniform(load, run):
    """Every token has nearly the same logprob, and over many positions all come."""
    engine = load(vocab_size=8)
    outputs = (await run(engine, GenerateRequest("a", (1,), SamplingParams(max_tokens=400))))["a"]
    assert all(abs(output.logprob + math.log(8)) < 0.02 for output in outputs)
    counts = Counter(ids(outputs))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 4 * min(counts.values())


async def test_everything_else_is_the_engines(load, run):
    """A bias forces, SCORE scores, the vocabulary is transformers_loader."""
    engine = load(vocab_size=50)
    forced = SamplingParams(max_tokens=3, logit_bias={7: 100.0})
    outputs = await run(
        engine, GenerateRequest("a", (1,), forced), ScoreRequest("b", (1,), (2, 3)), GenerateRequest("c", (50,))
    )
    assert ids(outputs["a"]) == [7, 7, 7]
    assert ids(outputs["b"]) == [2, 3]
    assert "not in the vocabulary" in outputs["c"][-1].error


async def test_logits_processors(load, run, plugin):
    """They change what is drawn, not what is told as `raw` or `biased`; what goes wrong in one ends its stream."""
    engine = load(vocab_size=50)
    sampling = SamplingParams(max_tokens=4, top_logprobs=0)

    def asked(name, *named, **params):
        return GenerateRequest(name, (1,), replace(sampling, **params), logits_processors=named)

    louder = NamedProcessor("louder", {"ids": [7, 8, 9]})
    outputs = await run(
        engine,
        asked("a", louder),
        asked("b", louder, temperature=1.0, seed=3, logprobs_mode="processed"),
        asked("c", NamedProcessor("broken")),
        asked("d", NamedProcessor("none such")),
        asked("e", NamedProcessor("only", {"token": 5}), louder),
        asked("f"),
    )
    assert ids(outputs["a"])[:3] == ids(outputs["b"])[:3] == [7, 8, 9]
    assert outputs["a"][0].logprob == pytest.approx(-math.log(50), abs=0.02)
    assert outputs["b"][0].logprob == pytest.approx(0.0, abs=1e-6)
    assert ids(outputs["c"]) == [*ids(outputs["f"])[:2], None]
    assert "broken failed: ValueError: no more" in outputs["c"][-1].error
    assert "there is no logits processor 'none such'; installed: " in outputs["d"][-1].error
    assert ids(outputs["e"]) == [5] * 4
    assert ids(outputs["f"]) == ids((await run(engine, asked("f")))["f"])


async def test_constraints(load, run):
    """The same guides as for any model; with few blocks streams make room for each other and still match."""
    engine = load(str(MODEL_DIR), blocks=8)
    tokenizer = load_tokenizer(str(MODEL_DIR))
    engine.set_guide_compiler(MatcherCompiler(tokenizer.to_json(), 1536, engine.info_now.eos_token_ids))
    requests = [
        GenerateRequest(n, (5, n), SamplingParams(max_tokens=60, temperature=1.0, seed=n), constraint=held)
        for n in range(6)
        for held in [constraint.regex("([a-f][0-9]){12}")]
    ]
    for outputs in (await run(engine, *requests)).values():
        assert outputs[-1].finish_reason == "stop"
        assert re.fullmatch("([a-f][0-9]){12}", tokenizer.decode(ids(outputs)))


def test_a_folder_tells_the_vocabulary(load):
    """Without reading weights, so that a tokenizer fits."""
    info = load(STORIES, context_length=100).info_now
    assert (info.backend, info.model, info.vocab_size, info.context_length) == ("random", "stories260K", 512, 100)


@pytest.mark.parametrize("options", [{"size": "1"}, {"vocab_size": "many"}, {"vocab_size": "0"}, {"step_ms": "-1"}])
def test_options_that_make_no_sense(options):
    """Refused with the value."""
    with pytest.raises(UsageError):
        load_random("x", EngineConfig(), options, lambda _p: None)
