"""Requests as vLLM's arguments, and its logprobs as ours."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core import constraint
from lmtool.core.errors import RequestError
from lmtool.core.reasoning import ThoughtMarks
from lmtool.core.types import Constraint, GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.backends.registry import option_value
from lmtool.inference.backends.vllm.model import (
    MARKS,
    MAX_BIASED,
    PositionLogprobs,
    constraint_json,
    generated_logprobs,
    needs_processor,
    processor_arguments,
    sampling_arguments,
    scored_logprobs,
    scoring_arguments,
)
from lmtool.inference.backends.vllm.shared_directory import StepReport


def request_with(**params: object) -> GenerateRequest:
    return GenerateRequest("a", (1,), SamplingParams(**params))  # type: ignore[arg-type]  # each test's own


def test_defaults_are_ours() -> None:
    """Greedy, the model's eos ids as stop ids, one alternative, no text."""
    arguments = sampling_arguments(request_with(), (2, 7))
    assert (arguments["temperature"], arguments["top_k"], arguments["logprobs"]) == (0.0, -1, 1)
    assert arguments["stop_token_ids"] == [2, 7]
    assert arguments["ignore_eos"] is True
    assert "logit_bias" not in arguments


def test_ignoring_eos_leaves_the_requests_own_stop_ids() -> None:
    """They end a stream all the same."""
    assert sampling_arguments(request_with(ignore_eos=True, stop_token_ids=(9,)), (2,))["stop_token_ids"] == [9]


def test_a_bias_without_limit() -> None:
    """VLLM refuses infinity; a hundred nats are as good."""
    arguments = sampling_arguments(request_with(logit_bias={3: math.inf, 4: -1.5}), ())
    assert arguments["logit_bias"] == {3: 100.0, 4: -1.5}
    assert arguments["logprob_token_ids"] == [3, 4]
    assert "logprob_token_ids" not in sampling_arguments(request_with(logit_bias={3: 1.0}, logprobs_mode="raw"), ())


@pytest.mark.parametrize(
    "request_",
    [
        request_with(logprobs_mode="processed"),
        request_with(logit_bias=dict.fromkeys(range(MAX_BIASED + 1), 1.0)),
    ],
)
def test_what_vllm_cannot_do(request_: GenerateRequest) -> None:
    """Refused, not done otherwise."""
    with pytest.raises(RequestError):
        sampling_arguments(request_, ())


def test_where_a_text_under_a_constraint_ends() -> None:
    """At eos and at stop ids; `min_tokens` is not vLLM's business, and what holds the stream travels beside."""
    sampled = SamplingParams(min_tokens=4, ignore_eos=True, stop_token_ids=(9,), logit_bias={3: 1.0})
    request = GenerateRequest("a", (1,), sampled, constraint=Constraint("regex", "a+"))
    arguments = sampling_arguments(request, (2,))
    assert (arguments["stop_token_ids"], arguments["min_tokens"]) == ([2, 9], 0)
    assert "logprob_token_ids" not in arguments
    extra = json.loads(processor_arguments(request, "n")["extra_args"]["lmtool"])
    assert (json.loads(extra["constraint"]), extra["min_tokens"], extra["ignore_eos"]) == ({"regex": "a+"}, 4, True)
    assert extra["stop_ids"] == [9]
    assert (extra["top_logprobs"], needs_processor(request), needs_processor(request_with())) == (1, True, False)


def test_logprobs_under_a_constraint() -> None:
    """Everything allowed moves by the same; the alternatives are the engine's. `raw` is vLLM's own."""
    report, position = StepReport("n", 0, 2.0, ((7, -0.1), (8, -0.9))), PositionLogprobs(5, {5: -3.0, 1: -0.5})
    assert generated_logprobs(SamplingParams(logit_bias={5: 0.5}), position, report) == (
        -0.5, ((7, -0.1), (8, -0.9), (5, -0.5)),
    )  # fmt: skip
    raw = SamplingParams(logprobs_mode="raw", top_logprobs=1)
    assert generated_logprobs(raw, position, report) == (-3.0, ((1, -0.5), (5, -3.0)))


@given(
    st.lists(st.floats(-3, 3), min_size=3, max_size=8),
    st.dictionaries(st.integers(0, 7), st.floats(-5, 5), min_size=1),
)
def test_biased_logprobs_are_exact(logits: list[float], bias: dict[int, float]) -> None:
    """As the softmax of the biased logits, known from the raw logprobs of the biased and the chosen ids alone."""
    bias = {token: value for token, value in bias.items() if token < len(logits)} or {0: 1.0}
    total = math.log(sum(map(math.exp, logits)))
    raw = {token: value - total for token, value in enumerate(logits)}
    moved = [value + bias.get(token, 0.0) for token, value in enumerate(logits)]
    expected = [value - math.log(sum(map(math.exp, moved))) for value in moved]
    for chosen in range(len(logits)):
        known = {token: raw[token] for token in {chosen, *bias}}
        own, best = generated_logprobs(SamplingParams(logit_bias=bias, top_logprobs=3), PositionLogprobs(chosen, known))
        assert own == pytest.approx(min(0.0, expected[chosen]), abs=1e-6)
        assert (chosen, own) in best


def test_a_forced_token_has_logprob_0() -> None:
    """What LMQL's client relies on."""
    own, best = generated_logprobs(SamplingParams(logit_bias={5: 100.0}), PositionLogprobs(5, {5: -12.0}))
    assert own == pytest.approx(0.0, abs=1e-6)
    assert best == ((5, own),)


def test_alternatives_are_the_k_best_and_the_chosen_one() -> None:
    """Best first; vLLM gives the chosen one beside them."""
    position = PositionLogprobs(9, {1: -0.5, 2: -1.5, 9: -4.0})
    assert generated_logprobs(SamplingParams(top_logprobs=2), position) == (-4.0, ((1, -0.5), (2, -1.5), (9, -4.0)))
    assert generated_logprobs(SamplingParams(top_logprobs=0), PositionLogprobs(9, {9: -4.0})) == (-4.0, ((9, -4.0),))


def test_scoring() -> None:
    """VLLM scores a prompt while it generates one token, which is dropped."""
    request = ScoreRequest("a", (1,), (2,), top_logprobs=1)
    assert (scoring_arguments(request)["max_tokens"], scoring_arguments(request)["prompt_logprobs"]) == (1, 1)
    assert scored_logprobs(request, PositionLogprobs(2, {2: -3.0, 4: -1.0})) == (-3.0, ((4, -1.0), (2, -3.0)))
    assert scored_logprobs(ScoreRequest("a", (1,), (2,)), PositionLogprobs(2, {2: -3.0})) == (-3.0, None)


def test_options_of_the_command_line() -> None:
    """JSON where it is, else the text itself."""
    assert [option_value(text) for text in ("2", "true", '{"a": 1}', "ray")] == [2, True, {"a": 1}, "ray"]


THINK = ThoughtMarks("<think>", ("</think>",), (5, 6), ((1,), (2,)), "\n\n", 7, (8,))


def test_they_are_read_as_they_were_written() -> None:
    """Beside a constraint, which stays what it is, and alone."""
    form = constraint.regex("a")
    members = json.loads(constraint_json(GenerateRequest(1, (1,), constraint=form, thought_marks=THINK)) or "")
    assert msgspec.convert(members.pop(MARKS), ThoughtMarks) == THINK
    assert constraint.constraint_from(members) == form
    bounded = GenerateRequest(1, (1,), thought_marks=THINK)
    assert list(json.loads(constraint_json(bounded) or "")) == [MARKS]
    assert needs_processor(bounded)
    assert constraint_json(GenerateRequest(1, (1,))) is None
    assert MARKS not in (constraint_json(GenerateRequest(1, (1,), constraint=form)) or "")
