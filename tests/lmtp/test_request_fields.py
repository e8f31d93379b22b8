"""Each field's range, and the sentence for a value outside of it."""

import json

import pytest

from lmtool.errors import RequestError
from lmtool.lmtp import request_fields
from lmtool.lmtp.request_fields import SAMPLING
from lmtool.types import SamplingParams

GOOD = {
    "max_tokens": [0, 1, 2**31 - 1],
    "temperature": [-1, 0, 0.7, 1e9],
    "top_k": [0, 50],
    "top_p": [1e-9, 0.5, 1],
    "min_p": [0, 0.05, 1],
    "repetition_penalty": [0.1, 1, 1.3],
    "presence_penalty": [-2, 0, 2.5],
    "frequency_penalty": [-2, 0, 2.5],
    "seed": [0, -(2**63), 2**63 - 1],
    "logit_bias": [{}, {"0": 1}, {"50256": -100.5}],
    "stop_token_ids": [[], [0, 5]],
    "min_tokens": [0, 7],
    "ignore_eos": [True, False],
    "top_logprobs": [0, 1, 256, 50_257],
    "logprobs_mode": ["raw", "biased", "processed"],
}
BAD = {
    "max_tokens": [-1, 1.5, "5", True, 2**31, [1]],
    "temperature": ["hot", True, [], {}],
    "top_k": [-1, 2.5],
    "top_p": [0, 1.1, -0.1, "0.5"],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0, -1],
    "presence_penalty": ["1"],
    "frequency_penalty": [False],
    "seed": [1.5, 2**63, "a"],
    "logit_bias": [[], {"a": 1}, {"-1": 1}, {"1": "2"}, {"1": None}, {"1.5": 1}, {str(2**31): 1}],
    "stop_token_ids": [[-1], ["a"], 5, list(range(65))],
    "min_tokens": [-1],
    "ignore_eos": [1, "true"],
    "top_logprobs": [-1, 2**31, True],
    "logprobs_mode": ["best", 1],
}


def cases(table):
    return [pytest.param(name, value, id=f"{name}-{value!r:.20}") for name in table for value in table[name]]


def test_every_sampling_parameter_has_a_field():
    """GENERATE can set every sampling parameter; `stop` has a form of its own."""
    assert set(SAMPLING) | {"stop"} == set(SamplingParams.__dataclass_fields__)
    assert set(GOOD) == set(BAD) == set(SAMPLING)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_values_in_range(name, value):
    """A value in range is read as it is."""
    read = SAMPLING[name].read(name, json.dumps(value).encode())
    if name == "logit_bias":
        assert read == {int(token): float(nats) for token, nats in value.items()}
    else:
        assert read == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_values_out_of_range(name, value):
    """A value out of range is refused by a sentence with field, value and expectation."""
    text = json.dumps(value)
    with pytest.raises(RequestError) as refused:
        SAMPLING[name].read(name, text.encode())
    assert refused.value.message.startswith(f"{name} ")
    assert f"; expected {SAMPLING[name].expected}" in refused.value.message


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_are_finite(text):
    """A number that is none, or not finite, is refused by its spelling."""
    with pytest.raises(RequestError, match=f"temperature is {text.decode()}; expected a finite number"):
        SAMPLING["temperature"].read("temperature", text)


def test_the_culprit_is_named():
    """Of a long list or object the one bad element is shown."""
    prompt = json.dumps([*range(100), -5]).encode()
    with pytest.raises(RequestError, match=r"prompt has -5 at index 100; expected an array"):
        request_fields.PROMPT.read("prompt", prompt)
    bias = json.dumps({**{str(i): 1 for i in range(100)}, "x": 3}).encode()
    with pytest.raises(RequestError, match=r'logit_bias has \{"x":3\}; expected an object'):
        SAMPLING["logit_bias"].read("logit_bias", bias)


def test_a_mask_that_is_cut_off_is_refused():
    """An object that is not even JSON is refused like any bad value."""
    with pytest.raises(RequestError, match="logit_bias is"):
        SAMPLING["logit_bias"].read("logit_bias", b'{"1": NaN}')


def test_long_values_are_cut():
    """A sentence shows the start of a long value."""
    with pytest.raises(RequestError) as refused:
        SAMPLING["temperature"].read("temperature", json.dumps("x" * 10_000).encode())
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("value", ["", 1.5, None, [""], [1.5], ["a"] * 65, "x" * 1025])
def test_stops_out_of_range(value):
    """A stop is a text that is not empty, an id, or a short list of them."""
    with pytest.raises(RequestError, match="stop "):
        request_fields.STOP.read("stop", json.dumps(value).encode())


@pytest.mark.parametrize("value", [[], [{}], [{"role": "user"}], [{"role": "user", "content": 5}], "hi", [5]])
def test_messages_out_of_range(value):
    """Messages have a role and a content, and there is at least one."""
    with pytest.raises(RequestError, match="messages "):
        request_fields.MESSAGES.read("messages", json.dumps(value).encode())
