"""What is refused before it reaches the engine thread, and in which words; streams themselves are in test_engine."""

from __future__ import annotations

import math
import re

import pytest

from lmtool.engine.request_check import MAX_LOGPROBS, check_generate, check_score, clamped
from lmtool.errors import ContextOverflowError, RequestError, UnknownTokenError
from lmtool.types import RANGES, ChatMessage, GenerateRequest, ModelInfo, SamplingParams, ScoreRequest

INFO = ModelInfo("m", "", "transformers", vocab_size=50, context_length=10, bos_token_id=1)


def generate(prompt=(3,), **params):
    """Check a GENERATE request."""
    return check_generate(GenerateRequest(1, prompt, SamplingParams(**params)), INFO)


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
    with pytest.raises(RequestError, match=re.escape(f"{name} is {value}; expected {RANGES[name]}")):
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


@pytest.mark.parametrize("prompt", ["text", (ChatMessage("user", "hello"),), (3, 4.0), (3, "4")])
def test_not_ids(prompt):
    """Text, messages and anything but ints need a tokenizer, which is not here."""
    with pytest.raises(RequestError, match="prompt must be a list of token ids"):
        generate(prompt)


def test_empty_prompt():
    """Starts from bos; without one it is refused."""
    assert generate(()) == [1]
    with pytest.raises(RequestError, match="no bos token"):
        check_generate(GenerateRequest(1, ()), ModelInfo("m", "", "transformers", vocab_size=50))


def test_context():
    """A prompt must leave room for one token; prompt and scored text must fit together."""
    assert len(generate((3,) * 9, max_tokens=99)) == 9
    with pytest.raises(ContextOverflowError, match=r"prompt of 10 tokens leaves no room.* 10 tokens"):
        generate((3,) * 10)
    assert check_score(ScoreRequest(1, (3,) * 4, (4,) * 6), INFO) == ([3] * 4, [4] * 6)
    with pytest.raises(ContextOverflowError, match="4 and scored text of 7"):
        check_score(ScoreRequest(1, (3,) * 4, (4,) * 7), INFO)


def test_score_alternatives():
    """As in SamplingParams, or none."""
    assert check_score(ScoreRequest(1, (), (4,), top_logprobs=9999), INFO)
    with pytest.raises(RequestError, match="top_logprobs is -1"):
        check_score(ScoreRequest(1, (), (4,), top_logprobs=-1), INFO)


@pytest.mark.parametrize(
    ("asked", "most", "given"), [(5, None, 5), (9999, None, 50), (9999, 20, 20), (3, 20, 3), (7, 0, 0)]
)
def test_alternatives_are_clamped(asked, most, given):
    """To the server's limit and the vocabulary: LMQL's clients ask for thousands."""
    assert clamped(asked, INFO, most) == given
    assert clamped(9999, ModelInfo("m", "", "x"), None) == MAX_LOGPROBS
