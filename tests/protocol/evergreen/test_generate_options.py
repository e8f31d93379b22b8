"""Configs: OpenAI's names with their ranges, whole numbers as doubles; what is unknown or out of range is named."""

from __future__ import annotations

import math

import pytest

from lmtool.core.types import Constraint, NamedProcessor, SamplingParams
from lmtool.protocol.evergreen.generate_options import GenerateOptions, read_options
from lmtool.protocol.evergreen.status import Abort, Status

SCHEMA = {"type": "array", "minItems": 2.0, "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"max_tokens": 16.0}, "max_tokens", 16),
        ({"max_completion_tokens": 5}, "max_tokens", 5),
        ({"temperature": 0.5, "max_tokens": None}, "temperature", 0.5),
        ({"top_k": -1.0}, "top_k", 0),
        ({"seed": 7.0}, "seed", 7),
        ({"stop": "end"}, "stop", ("end",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop_token_ids": [3.0]}, "stop_token_ids", (3,)),
        ({"logit_bias": {"5": 1.0, "6": -1000}}, "logit_bias", {5: 1.0, 6: -100.0}),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"top_logprobs": 3.0}, "top_logprobs", 3),
        ({"logprobs_mode": "raw"}, "logprobs_mode", "raw"),
    ],
)
def test_sampling(given, field, value):
    """Each has the name and the meaning that it has over HTTP; a double may stand for a whole number."""
    read = getattr(read_options([given]).sampling, field)
    assert (read, type(read)) == (value, type(value))


def test_defaults():
    """Nothing asked for is greedy and ends after 256 tokens."""
    assert read_options([]) == GenerateOptions(SamplingParams(max_tokens=256, top_logprobs=0))


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint("choice", '["a","b"]')),
        ({"constraint": {"regex": "a+"}}, Constraint("regex", "a+")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            Constraint("json_schema", '{"type":"array","minItems":2,"items":{"type":"integer"}}'),
        ),
    ],
)
def test_constraints(given, constraint):
    """Each spelling in use; a schema's whole numbers are whole."""
    assert read_options([given]).constraint == constraint


def test_more():
    """Priority, processors, variables of the template; of two messages the last one counts."""
    first = {"priority": 3.0, "seed": 1, "logits_processors": [{"name": "a", "args": {"k": 2.0}}]}
    options = read_options([first, {"seed": 2, "chat_template_kwargs": {"thinking": True}}])
    assert (options.priority, options.sampling.seed) == (3, 2)
    assert options.logits_processors == (NamedProcessor("a", {"k": 2}),)
    assert options.chat_template_kwargs == {"thinking": True}
    assert (options.deadline, read_options([{"deadline": 2.5}]).deadline) == (None, 2.5)


def test_how_much_to_think():
    """A budget of -1 is none; effort `none` turns the thought off by the template's variables."""
    assert [read_options([{"thinking_token_budget": n}]).thinking_token_budget for n in (5.0, 0, -1)] == [5, 0, None]
    effort = read_options([{"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}])
    assert effort.template_variables == {"reasoning_effort": "none", "enable_thinking": False, "thinking": True}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_tokens": 16.5}, r"max_tokens is 16.5; expected a whole number from 0"),
        ({"max_tokens": "16"}, "max_tokens is '16'"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 3}, "temperature is 3; expected a number from 0 to 2"),
        ({"top_p": math.inf}, "top_p is inf"),
        ({"stop": [""]}, "stop is"),
        ({"stop": ["a"] * 65}, "at most 64"),
        ({"stop_token_ids": [-1]}, "stop_token_ids is"),
        ({"logit_bias": {"x": 1}}, "logit_bias is"),
        ({"logit_bias": {"5": math.nan}}, "logit_bias is"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"ignore_eos": 1}, "ignore_eos is 1; expected true or false"),
        ({"priority": 2.0**40}, "priority is"),
        ({"deadline": 0}, "deadline is 0; expected a number above 0, at most 86400"),
        ({"deadline": "soon"}, "deadline is 'soon'"),
        ({"thinking_token_budget": -2}, "thinking_token_budget is -2; expected a whole number from -1"),
        ({"reasoning_effort": ""}, "reasoning_effort is ''; expected one of none, minimal, low"),
        ({"reasoning_effort": 3.0}, "reasoning_effort is 3.0"),
        ({"reasoning_effort": "x" * 65}, "reasoning_effort is"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs is"),
        ({"logits_processors": [5]}, r"logits_processors\[0\]"),
        ({"response_format": {"type": "yaml"}}, "response_format is"),
        ({"constraint": {"regex": "a"}, "structured_outputs": {"regex": "b"}}, "contradict"),
        ({"max_token": 5}, "no option 'max_token'"),
        ({"n": 2}, "no option 'n'"),
        ({"x" * 500: 2}, "no option 'xxx"),
    ],
)
def test_refusals(given, sentence):
    """INVALID_ARGUMENT names the option, and repeats at most 80 characters of the client's words."""
    with pytest.raises(Abort, match=sentence) as refused:
        read_options([given])
    assert refused.value.status is Status.INVALID_ARGUMENT
    assert "x" * 81 not in refused.value.sentence
