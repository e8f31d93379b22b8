"""Which distribution logprobs are of."""

from __future__ import annotations

import pytest

from lmtool.logprobs.mode import MEANINGS, logprobs_mode


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
