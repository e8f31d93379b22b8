"""What a row of logits gives, written down plainly in float64: the definition that all samplers are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.core.logprobs.uniform import uniform

if TYPE_CHECKING:
    from lmtool.core.types import SamplingParams
    from lmtool.inference.engine.sampling_result import SampledToken
    from lmtool.inference.engine.sampling_row import Row

EDGE = 1e-6
"""How near to an edge of the cumulative sum a float32 sampler may take the other side."""


@dataclass(frozen=True)
class Expected:
    """A row's distribution and the token drawn from it."""

    token: int
    logprobs: Tensor
    """[V] float64, under the row's `logprobs_mode`."""
    tokens: frozenset[int]
    """Those that may be drawn: more than one where the uniform number is at an edge."""
    near_cut: bool
    """Whether top-p or min-p is so near to a cumulative probability that another token may stay."""


def expected(logits: Tensor, row: Row) -> Expected:
    """What the row gives. logits: [V]."""
    raw = logits.double()
    if row.target is not None:
        return Expected(row.target, torch.log_softmax(raw, -1), frozenset({row.target}), near_cut=False)
    params, ids = row.params, torch.arange(len(raw))
    biased = raw.clone()
    if row.bias is not None:
        biased[row.bias.ids] += row.bias.values.double()
    if row.allowed is not None:
        biased[((row.allowed[ids // 32] >> (ids % 32)) & 1) == 0] = -torch.inf
    processed = biased.clone()
    known = torch.tensor(sorted(row.known_ids), dtype=torch.int64)
    penalty = params.repetition_penalty
    processed[known] = torch.where(processed[known] > 0, processed[known] / penalty, processed[known] * penalty)
    for token, count in row.counts.items():
        processed[token] -= params.presence_penalty + params.frequency_penalty * count
    processed[list(row.barred)] = -torch.inf
    near_cut = False
    if params.temperature > 0:
        processed = (processed - processed.max()) / max(params.temperature, 1e-5)
        processed, near_cut = _cut(processed, params)
    stages = {"raw": raw, "biased": biased, "processed": processed}
    logprobs = torch.log_softmax(stages[params.logprobs_mode], -1)
    if params.temperature <= 0:
        token = int(processed.argmax())
        return Expected(token, logprobs, frozenset({token}), near_cut)
    sums = torch.softmax(processed, -1).cumsum(-1)
    place = uniform(row.seed, row.position)
    possible = [
        int(torch.searchsorted(sums, min(max(place + d, 0.0), 1 - 1e-12), right=True)) for d in (0, -EDGE, EDGE)
    ]
    possible = [min(token, len(raw) - 1) for token in possible]
    return Expected(possible[0], logprobs, frozenset(possible), near_cut)


def _cut(logits: Tensor, params: SamplingParams) -> tuple[Tensor, bool]:
    """What top-k, then top-p, then min-p leave, -inf for the rest; and whether a cut is a matter of rounding."""
    order = torch.sort(logits, descending=True, stable=True).indices
    if params.top_k > 0:
        order = order[: params.top_k]
    probabilities = torch.softmax(logits[order], -1)
    before = probabilities.cumsum(-1) - probabilities
    stays = (before < params.top_p) | (params.top_p >= 1)
    stays &= probabilities >= params.min_p * probabilities[0]
    stays[0] = True
    near = bool(((before - params.top_p).abs() < EDGE).any()) and 0 < params.top_p < 1
    near |= params.min_p > 0 and bool(((probabilities / probabilities[0] - params.min_p).abs() < EDGE).any())
    kept = torch.full_like(logits, -torch.inf)
    kept[order[stays]] = logits[order[stays]]
    return kept, near


def check(logits: Tensor, row: Row, found: SampledToken | None) -> None:
    """Assert that a sampler gave what the row gives: its id, the logprob within 1e-5, and the same alternatives.

    logits: [V]. found: a `SampledToken`.
    """
    want = expected(logits, row)
    assert found is not None
    if want.near_cut:
        return
    assert found.token in want.tokens, (found.token, want.token, row.params)
    logprob = float(want.logprobs[found.token])
    tolerance = 1e-5 * max(1.0, abs(logprob) / 10)
    assert abs(found.logprob - logprob) < tolerance, (found.logprob, logprob, row.params)
    if row.top_logprobs is None or found.top_logprobs is None:
        assert row.top_logprobs is None
        assert found.top_logprobs is None
        return
    count = len(row.logprob_ids) or row.top_logprobs
    order = torch.tensor(row.logprob_ids, dtype=torch.int64) if row.logprob_ids else torch.arange(len(logits))
    order = order[torch.sort(want.logprobs[order], descending=True, stable=True).indices][:count]
    best = [value for value in want.logprobs[order].tolist() if value > -torch.inf]
    given = [value for _, value in found.top_logprobs]
    assert torch.allclose(torch.tensor(given[: len(best)]), torch.tensor(best), atol=1e-5, rtol=1e-5)
    assert found.token in [token for token, _ in found.top_logprobs]
    for token, value in found.top_logprobs:
        assert abs(value - float(want.logprobs[token])) < 1e-5 * max(1.0, abs(value) / 10)
