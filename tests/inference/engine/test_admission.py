"""Requests become streams, or are refused."""

from __future__ import annotations

import asyncio
import math
import re

import pytest
import torch

from lmtool.core.errors import ConstraintError, ContextOverflowError, RequestError, UnknownTokenError
from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS
from lmtool.core.types import (
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    ModelInfo,
    NamedProcessor,
    SamplingParams,
    ScoreRequest,
)
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.request_checks import MAX_LOGPROBS, clamp_logprobs, validate_generate, validate_score
from lmtool.inference.engine.stream import StreamFactory
from tests.inference.engine.guiding import StepCompiler, steps

INFO = ModelInfo("m", "c", "random", vocab_size=50, context_length=20, eos_token_ids=(2,), bos_token_id=1)


def ignore(outputs):
    """A sink for nobody."""


@pytest.fixture
def opened():
    """Open a request."""
    loop = asyncio.new_event_loop()

    def open_one(request, *, guides=None, speculation=True, jump_forward=True):
        config = EngineConfig(speculation=speculation, jump_forward=jump_forward)
        factory = StreamFactory(INFO, torch.device("cpu"), config)
        factory.guides = guides
        return factory.create(request, ignore, loop)

    yield open_one
    loop.close()


def test_generate(opened):
    """The stream ends at `max_tokens` or with the context, and at the model's eos or the request's own ids."""
    stream = opened(GenerateRequest("s", (3, 4), SamplingParams(max_tokens=99, stop_token_ids=(7,)), priority=3))
    sequence = stream.sequence
    assert (sequence.tokens, sequence.prompt_length, sequence.max_length) == ([3, 4], 2, 20)
    assert (sequence.stop_ids, sequence.priority, sequence.awaiting_constraint, sequence.client) == (
        {2, 7},
        3,
        False,
        ignore,
    )
    assert opened(GenerateRequest("s", (3,), SamplingParams(ignore_eos=True))).sequence.stop_ids == frozenset()


def test_score(opened):
    """All ids are known from the start."""
    sequence = opened(ScoreRequest("s", (3, 4), (5, 6))).sequence
    assert (sequence.tokens, sequence.prompt_length, sequence.max_length, sequence.scoring) == (
        [3, 4, 5, 6],
        2,
        4,
        True,
    )


def test_constraint(opened):
    """A constrained stream is held until its constraint is there, and ends with eos or a stop id."""
    request = GenerateRequest("s", (3,), SamplingParams(stop_token_ids=(7,), ignore_eos=True), constraint=steps("7"))
    stream = opened(request, guides=StepCompiler(2, at_once=False), jump_forward=False)
    assert (stream.sequence.awaiting_constraint, stream.sequence.stop_ids, stream.jump_forward) == (True, {2, 7}, False)
    with pytest.raises(ConstraintError, match="enforces no constraints"):
        opened(request)


@pytest.mark.parametrize(
    ("sampling", "drafted"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=1.0, min_tokens=3), True),
        (SamplingParams(repetition_penalty=1.1), False),
        (SamplingParams(presence_penalty=1.0), False),
        (SamplingParams(frequency_penalty=1.0), False),
    ],
)
def test_who_is_drafted(opened, sampling, drafted):
    """Nothing is guessed for a stream whose every token changes how the next one is drawn, nor where it is off."""
    request = GenerateRequest("s", (3,), sampling)
    assert (opened(request).drafter is not None) == drafted
    assert opened(request, speculation=False).drafter is None


def test_constrained_streams_that_may_not_end(opened):
    """With `min_tokens` or `ignore_eos` beside a constraint, each row would need the constraint's place at that row."""
    for sampling, drafted in ((SamplingParams(), True), (SamplingParams(min_tokens=2), False)):
        stream = opened(GenerateRequest("s", (3,), sampling, constraint=steps("7")), guides=StepCompiler(2))
        assert (stream.drafter is not None) == drafted


def test_refused_before_anything_is_compiled(opened):
    """A bad prompt or an unknown processor raises, and no compilation is left behind."""
    guides = StepCompiler(2, at_once=False)
    unknown = (NamedProcessor("no such processor", {}),)
    for request in (
        GenerateRequest("s", (99,), constraint=steps("7")),
        GenerateRequest("s", (3,), constraint=steps("7"), logits_processors=unknown),
    ):
        with pytest.raises(RequestError):
            opened(request, guides=guides)
    assert guides.waiting == []


INFO_request_check = ModelInfo("m", "", "transformers", vocab_size=50, context_length=10, bos_token_id=1)


def generate(prompt=(3,), **params):
    """Check a GENERATE request."""
    return validate_generate(GenerateRequest(1, prompt, SamplingParams(**params)), INFO_request_check)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": 1e300},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": 2},
        {"seed": 2**63},
        {"max_tokens": 10**12},
        {"max_tokens": 1.5},
        {"top_k": -1},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"top_logprobs": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -math.inf},
    ],
)
def test_out_of_range(params):
    """The field, its value, and what was expected."""
    ((name, value),) = params.items()
    with pytest.raises(RequestError, match=re.escape(f"{name} is {value}; expected {NUMERIC_PARAMETERS[name].engine}")):
        generate(**params)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_k": 10**9},
        {"max_tokens": 2**31 - 1},
        {"top_logprobs": 0},
        {"seed": -(2**63)},
        {"logit_bias": {49: -math.inf, 0: math.inf}},
        {"stop_token_ids": (0, 49)},
    ],
)
def test_at_the_edge(params):
    """What may look odd but means something is taken."""
    assert generate(**params) == [3]


def test_bias():
    """NaN is no bias, and an unknown id has none."""
    with pytest.raises(RequestError, match="NaN"):
        generate(logit_bias={3: math.nan})
    with pytest.raises(UnknownTokenError, match="token id -1 in logit_bias"):
        generate(logit_bias={-1: 1.0})


def test_stop_token_ids():
    """Must be in the vocabulary."""
    with pytest.raises(UnknownTokenError, match=r"50 in stop_token_ids .* \(0 to 49\)"):
        generate(stop_token_ids=(50,))


@pytest.mark.parametrize("prompt", ["text", ChatPrompt((ChatMessage("user", "hello"),)), (3, 4.0), (3, "4")])
def test_not_ids(prompt):
    """Text, messages and anything but ints need a tokenizer, which is not here."""
    with pytest.raises(RequestError, match="prompt must be a list of token ids"):
        generate(prompt)


def test_empty_prompt():
    """Starts from bos; without one it is refused."""
    assert generate(()) == [1]
    with pytest.raises(RequestError, match="no bos token"):
        validate_generate(GenerateRequest(1, ()), ModelInfo("m", "", "transformers", vocab_size=50))


def test_context():
    """A prompt must leave room for one token; prompt and scored text must fit together."""
    assert len(generate((3,) * 9, max_tokens=99)) == 9
    with pytest.raises(ContextOverflowError, match=r"too long: 10 tokens > 9 maximum.* 10 tokens"):
        generate((3,) * 10)
    assert validate_score(ScoreRequest(1, (3,) * 4, (4,) * 6), INFO_request_check) == ([3] * 4, [4] * 6)
    with pytest.raises(ContextOverflowError, match=r"11 tokens > 10 maximum.* 4 of prompt and 7 that are scored"):
        validate_score(ScoreRequest(1, (3,) * 4, (4,) * 7), INFO_request_check)


def test_score_alternatives():
    """As in SamplingParams, or none."""
    assert validate_score(ScoreRequest(1, (), (4,), top_logprobs=9999), INFO_request_check)
    with pytest.raises(RequestError, match="top_logprobs is -1"):
        validate_score(ScoreRequest(1, (), (4,), top_logprobs=-1), INFO_request_check)


@pytest.mark.parametrize(
    ("asked", "most", "given"), [(5, None, 5), (9999, None, 50), (9999, 20, 20), (3, 20, 3), (7, 0, 0)]
)
def test_alternatives_are_clamped(asked, most, given):
    """To the server's limit and the vocabulary: LMQL's clients ask for thousands."""
    assert clamp_logprobs(asked, INFO_request_check, most) == given
    assert clamp_logprobs(9999, ModelInfo("m", "", "x"), None) == MAX_LOGPROBS
