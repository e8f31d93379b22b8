"""Which distribution logprobs are of."""

from __future__ import annotations

import pytest

from lmtool.core.logprobs.mode import MEANINGS, logprobs_mode, mode_of
from lmtool.core.types import Constraint, GenerateRequest, SamplingParams, ScoreRequest


@pytest.mark.parametrize(
    ("payload", "biased", "mode"),
    [
        ({}, False, "raw"),
        ({"temperature": 0.7, "top_k": 3, "repetition_penalty": 1.2}, False, "raw"),  # biased, of which nothing is
        ({}, True, "biased"),
        ({"logit_bias": {"3": 1}}, False, "biased"),
        ({"constraint": {"regex": "a"}}, False, "biased"),
        ({"constraint": {"regex": "a"}, "logprobs_mode": "raw"}, True, "raw"),
        ({"logprobs_mode": "processed", "temperature": 0.7}, False, "processed"),
        ({"logprobs_mode": "processed", "temperature": 1, "top_p": 0.9}, False, "processed"),
        ({"logprobs_mode": "processed", "temperature": 1, "top_p": 1}, False, "raw"),
        ({"logprobs_mode": "processed", "top_k": 3}, False, "raw"),  # greedy: the distribution before the temperature
        ({"logprobs_mode": "processed", "presence_penalty": 1.0}, False, "processed"),
        ({"logprobs_mode": "processed", "min_tokens": 2}, True, "processed"),
        ({"logprobs_mode": "processed", "logits_processors": [{"name": "x"}]}, False, "processed"),
        ({"logprobs_mode": "processed"}, True, "biased"),
        ({"logprobs_mode": ["odd"], "temperature": "odd"}, False, "raw"),
    ],
)
def test_the_earliest_stage_with_the_same_numbers(payload: dict[str, object], biased: bool, mode: str) -> None:
    """Logprobs are named after what really changed them (LMTP, LOG-2 to LOG-4)."""
    assert logprobs_mode(payload, biased=biased) == mode
    assert mode in MEANINGS


@pytest.mark.parametrize(
    ("request_", "mode"),
    [
        (GenerateRequest(1, (1,)), "raw"),
        (GenerateRequest(1, (1,), SamplingParams(logit_bias={3: 1.0})), "biased"),
        (GenerateRequest(1, (1,), constraint=Constraint("regex", "a")), "biased"),
        (GenerateRequest(1, (1,), SamplingParams(temperature=2.0, logprobs_mode="processed")), "processed"),
        (GenerateRequest(1, (1,), SamplingParams(logprobs_mode="processed")), "raw"),
        (ScoreRequest(1, (1,), (2,)), "raw"),
    ],
)
def test_of_a_request(request_: GenerateRequest | ScoreRequest, mode: str) -> None:
    """The same of a request that is still an object; SCORE has the model's own (LMTP, LOG-3)."""
    assert mode_of(request_) == mode
