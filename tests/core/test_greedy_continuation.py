"""Which streams any server can go on with, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmtool.core.greedy_continuation import follows_from_ids, rest_as_prompt
from lmtool.core.types import Constraint, GenerateRequest, NamedProcessor, SamplingParams

REQUEST = GenerateRequest(0, (1, 2), SamplingParams(max_tokens=5, repetition_penalty=1.2, logit_bias={3: 1.0}))


def sampling(**values: object) -> GenerateRequest:
    return replace(REQUEST, sampling=replace(REQUEST.sampling, **values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        sampling(temperature=0.5),
        sampling(stop=("x",)),
        sampling(min_tokens=2),
        sampling(presence_penalty=0.1),
        sampling(frequency_penalty=0.1),
        replace(REQUEST, prompt="text"),
        replace(REQUEST, text=True),
        replace(REQUEST, into="b"),
        replace(REQUEST, generated=(1,)),
        replace(REQUEST, constraint=Constraint("regex", "a")),
        replace(REQUEST, logits_processors=(NamedProcessor("walk"),)),
    ],
)
def test_what_depends_on_more_than_ids(other: GenerateRequest) -> None:
    """Draws, state, and what counts generated tokens cannot be had from a prompt."""
    assert follows_from_ids(REQUEST)
    assert not follows_from_ids(other)


def test_the_rest() -> None:
    """The ids become part of the prompt, and count as generated."""
    rest = rest_as_prompt(REQUEST, [7, 8])
    assert (rest.prompt, rest.sampling.max_tokens, rest.sampling.logit_bias) == ((1, 2, 7, 8), 3, {3: 1.0})
