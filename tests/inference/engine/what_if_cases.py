"""Random steps under random parameters: what `what_if` says of them beside what the engine's own sampler does."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

import torch

from lmtool.core.logprobs.distribution import Distribution
from lmtool.core.logprobs.uniform import uniform
from lmtool.core.logprobs.what_if import Knobs, draw, what_if
from lmtool.core.types import SamplingParams
from lmtool.inference.engine.sampler import sample
from lmtool.inference.engine.sampling_row import Row

CLOSE = 2e-5
"""Probability that float32 sums may be off."""


@dataclass(frozen=True, slots=True)
class Case:
    """One step."""

    knobs: Knobs
    sent: int
    """Alternatives that were recorded."""
    seed: int
    position: int


def knobs(chance: random.Random) -> Knobs:
    """Any mix, each parameter often off."""
    return Knobs(
        chance.choice((0.0, 1.0, 1.0, round(chance.uniform(0.05, 1), 2), round(chance.uniform(1, 3), 2))),
        chance.choice((1.0, 1.0, round(chance.uniform(0, 1), 3), 0.9)),
        chance.choice((0, 0, 1, chance.randint(1, 60))),
        chance.choice((0.0, 0.0, round(chance.uniform(0, 1) ** 3, 4))),
    )


def check(count: int, seed: int) -> Counter[str]:
    """Compare so many steps of one vocabulary; how many were exact, and how many draws were told.

    Raises `AssertionError` where a bound does not hold, or a token that was told to be drawn was not.
    """
    chance = random.Random(seed)
    size = chance.choice((3, 20, 257, 1000))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, size, generator=generator) * chance.choice((0.5, 2.0, 5.0))
    cases = [Case(knobs(chance), chance.randint(1, min(size, 40)), chance.getrandbits(60), i) for i in range(count)]
    params = [
        SamplingParams(
            temperature=one.knobs.temperature,
            top_p=one.knobs.top_p,
            top_k=one.knobs.top_k,
            min_p=one.knobs.min_p,
            logprobs_mode="processed",
        )
        for one in cases
    ]
    rows = [Row(p, None, None, size, one.seed, one.position) for p, one in zip(params, cases, strict=True)]
    results = sample(logits.clone(), rows)
    recorded = sample(logits.clone(), [Row(SamplingParams(), None, None, one.sent, 0, 0) for one in cases])
    logprobs = torch.log_softmax(logits, -1)
    counts: Counter[str] = Counter()
    for i, (case, result, sent) in enumerate(zip(cases, results, recorded, strict=True)):
        assert result is not None
        assert sent is not None
        assert sent.top_logprobs is not None
        chosen = chance.choice((result.token, sent.token))
        top = dict(sent.top_logprobs)
        top.setdefault(chosen, float(logprobs[i, chosen]))
        distribution = Distribution.of(chosen, top[chosen], sorted(top.items(), key=lambda p: -p[1]), case.sent)
        counts += compare(case, distribution, result, size)
    return counts


def compare(case: Case, distribution: Distribution[int], result: object, size: int) -> Counter[str]:
    """One step."""
    made = what_if(distribution, case.knobs, size)
    if made is None:
        return Counter(unknown=1)
    greedy = case.knobs.temperature <= 0
    real = {result.token: 1.0} if greedy else {i: math.exp(p) for i, p in result.top_logprobs}  # type: ignore[attr-defined]
    told: set[int] = set()
    for one in made.chances:
        token = one.token
        assert token is not None
        told.add(token)
        p = real.get(token, 0.0)
        assert one.low - CLOSE <= p <= one.high + CLOSE, (case, one, p)
        assert one.stays is not True or token in real, (case, one)
        assert one.stays is not False or token not in real, (case, one)
    left = {token: p for token, p in real.items() if token not in told}
    if made.other is None:
        assert not left
    else:
        whole = math.fsum(left.values())
        assert made.other.low - CLOSE <= whole <= made.other.high + CLOSE, (case, made.other, whole)
        assert made.other.stays is not True or left, (case, made.other)
        assert made.other.stays is not False or not left, (case, made.other, left)
    drawn = draw(made, 0.0 if greedy else uniform(case.seed, case.position))
    token = result.token  # type: ignore[attr-defined] # a sampled token
    assert drawn.token is None or drawn.token == token, (case, drawn, token)
    assert token in drawn.possible or (drawn.other and token not in told), (case, drawn, token)
    return Counter(steps=1, exact=made.is_exact, drawn=drawn.token is not None)
