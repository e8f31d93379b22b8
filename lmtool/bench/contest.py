"""Who runs when, which rounds and which contestants count, and what the numbers say: no clock, no process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from lmtool.bench.statistics import Spread, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

DISTURBED = 0.10
"""Share by which the calibration kernel may differ before and after a round that counts."""
TIES = {"float32": 0.003, "float16": 0.02, "bfloat16": 0.06, "int8": 0.25}
"""Lead of the best logit over the second, in standard deviations of a row, below which a dtype may choose either."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One contestant's one visit at one batch size."""

    tokens: int
    """Decoded in all streams beyond the first of each."""
    prompt_tokens: int
    prefill_s: float
    decode_s: float
    prefill_cpu_s: float
    decode_cpu_s: float

    @property
    def decode_rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.decode_s

    @property
    def decode_cpu_rate(self) -> float:
        """Tokens per CPU-second."""
        return self.tokens / self.decode_cpu_s

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_s

    @property
    def prefill_cpu_rate(self) -> float:
        """Prompt tokens per CPU-second."""
        return self.prompt_tokens / self.prefill_cpu_s


@dataclass(frozen=True, slots=True)
class Round:
    """One visit of every contestant, between two runs of the calibration kernel."""

    timings: Mapping[str, Timing]
    """By contestant."""
    before: float
    """Speed of the calibration kernel."""
    after: float

    @property
    def steady(self) -> bool:
        """Whether the machine was the same before and after."""
        return abs(self.after - self.before) <= DISTURBED * max(self.after, self.before)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a contestant's greedy ids are the reference's."""

    checked: int
    """Ids compared: each stream's up to its first near tie."""
    wrong: int
    """Streams that differ before it."""
    of: int
    """Ids there were to compare."""

    @property
    def holds(self) -> bool:
        """Whether numbers of this contestant count: something was compared and nothing differs."""
        return self.checked > 0 and self.wrong == 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the rounds say about one contestant at one batch size; rates in tokens per second."""

    decode: Spread
    decode_cpu: Spread
    prefill: Spread
    prefill_cpu: Spread
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    """Ours over this one, round by round: `decode`, `decode_cpu`, `prefill`, `prefill_cpu`. Empty for ours."""


def timing(answer: Mapping[str, object], prompt_tokens: int, output: int) -> Timing:
    """A worker's answer as a timing: decoding takes what the whole run took beyond the prompts alone.

    Raises ValueError for a run in which a stream ended early, or that was too short to be measured.
    """
    lengths = answer["lengths"]
    assert isinstance(lengths, list)
    if any(length != output for length in lengths):
        raise ValueError(f"streams of {min(lengths)} to {max(lengths)} tokens instead of {output}")
    wall, cpu = _number(answer, "prefill_s"), _number(answer, "prefill_cpu_s")
    more, more_cpu = _number(answer, "total_s") - wall, _number(answer, "total_cpu_s") - cpu
    if min(wall, cpu, more, more_cpu) <= 0:
        raise ValueError("a run too short to be measured; use a longer --output-len")
    return Timing(len(lengths) * (output - 1), prompt_tokens, wall, more, cpu, more_cpu)


def _number(answer: Mapping[str, object], name: str) -> float:
    value = answer[name]
    assert isinstance(value, int | float)
    return float(value)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items from the `turn`-th on, then the others: everybody is first once."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


def clearest(prompts: Sequence[T], leads: Sequence[float], count: int) -> list[T]:
    """The prompts whose first id is least in doubt: of random weights most are near ties, which tell nothing.

    leads: of the reference's best logit, one for each prompt.
    """
    ranked = sorted(zip(leads, range(len(prompts)), strict=True), reverse=True)
    return [prompts[index] for _, index in ranked[:count]]


def agreement(
    reference: Sequence[Sequence[int]], gaps: Sequence[Sequence[float]], ids: Sequence[Sequence[int]], dtype: str
) -> Agreement:
    """Compare greedy ids with the reference's, each stream up to the first step where `dtype` may choose either.

    gaps: leads of the reference's best logit, in standard deviations, for each id.
    """
    checked = wrong = 0
    for right, leads, own in zip(reference, gaps, ids, strict=True):
        near = next((n for n, lead in enumerate(leads) if lead < TIES[dtype]), len(right))
        checked += near
        wrong += list(own[:near]) != list(right[:near])
    return Agreement(checked, wrong, sum(len(right) for right in reference))


def standings(rounds: Sequence[Round], ours: str) -> dict[str, Standing]:
    """Medians over the steady rounds, and of the ratios within each; empty where there is no such round.

    A contestant that is missing in one of them, because it failed, is left out.
    """
    steady = [one for one in rounds if one.steady]
    names = [name for name in steady[0].timings if all(name in one.timings for one in steady)] if steady else []
    return {name: _standing(name, steady, ours) for name in names}


def _standing(name: str, rounds: Sequence[Round], ours: str) -> Standing:
    kinds = ("decode", "decode_cpu", "prefill", "prefill_cpu")
    rates = {kind: [_rate(one.timings[name], kind) for one in rounds] for kind in kinds}
    decode, decode_cpu, prefill, prefill_cpu = (_spread(rates[kind]) for kind in kinds)
    if name == ours or ours not in rounds[0].timings:
        return Standing(decode, decode_cpu, prefill, prefill_cpu)
    best = {kind: [_rate(one.timings[ours], kind) for one in rounds] for kind in kinds}
    ratios = {kind: _spread([a / b for a, b in zip(best[kind], rates[kind], strict=True)]) for kind in kinds}
    return Standing(decode, decode_cpu, prefill, prefill_cpu, ratios)


def _rate(timing: Timing, kind: str) -> float:
    value: float = getattr(timing, f"{kind}_rate")
    return value


def _spread(values: Sequence[float]) -> Spread:
    found = spread(values)
    assert found is not None
    return found
