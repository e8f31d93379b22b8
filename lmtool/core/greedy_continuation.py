"""Greedy streams of ids, whose rest any server can compute: prompt and received ids are a prompt of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.types import GenerateRequest


def follows_from_ids(request: GenerateRequest) -> bool:
    """True if the rest of a stream depends on nothing but the ids of prompt and answer, and comes as ids."""
    sampling = request.sampling
    counted = sampling.stop or sampling.min_tokens or sampling.presence_penalty or sampling.frequency_penalty
    stateful = request.constraint or request.logits_processors or request.generated or request.reasoning or request.into
    greedy = isinstance(request.prompt, tuple) and sampling.temperature <= 0 and not request.text
    return greedy and not (counted or stateful)


def rest_as_prompt(request: GenerateRequest, ids: Sequence[int]) -> GenerateRequest:
    """A request for what is missing of such a stream. ids: received so far."""
    assert isinstance(request.prompt, tuple)
    sampling = replace(request.sampling, max_tokens=request.sampling.max_tokens - len(ids))
    return replace(request, prompt=(*request.prompt, *ids), sampling=sampling)
