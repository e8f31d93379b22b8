"""The rules of a contest between engines: order, valid rounds, agreement of ids, statistics; no clock, no process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lmtool.measure.bench.record import Spread, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

MAX_DRIFT = 0.10
"""Share by which the calibration kernel may differ before and after a valid round."""
TIES = {"float32": 0.003, "float16": 0.02, "bfloat16": 0.06, "int8": 0.25, "int4": 1.0}
"""Lead of the best logit over the second, in standard deviations of a row, below which a dtype may choose either."""
RATES = ("decode", "decode_cpu", "prefill", "prefill_cpu")
"""Tokens per second of decoding and prefill, by the wall clock and by CPU time."""

WAITS = ("first_mean", "first_last", "itl", "gap")
"""Seconds until a stream's first token (mean of all streams, and the last one), and between two tokens of a stream
(inter-token latency: the median, and the longest)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of one contestant at one batch size."""

    tokens: int
    """Decoded in all streams beyond the first of each."""
    prompt_tokens: int
    prefill_s: float
    decode_s: float
    prefill_cpu_s: float
    decode_cpu_s: float
    waits: Mapping[str, float] = field(default_factory=dict)
    """By name, see `WAITS`; empty of an engine that does not tell when each token came."""

    @property
    def rates(self) -> dict[str, float]:
        """By name, see `RATES`."""
        return {
            "decode": self.tokens / self.decode_s,
            "decode_cpu": self.tokens / self.decode_cpu_s,
            "prefill": self.prompt_tokens / self.prefill_s,
            "prefill_cpu": self.prompt_tokens / self.prefill_cpu_s,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One run of every contestant, between two runs of the calibration kernel."""

    timings: Mapping[str, Timing]
    """By contestant."""
    before: float
    """Speed of the calibration kernel."""
    after: float

    @property
    def steady(self) -> bool:
        """True if the machine was as fast after the round as before."""
        return abs(self.after - self.before) <= MAX_DRIFT * max(self.after, self.before)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a contestant's greedy ids equal the reference's."""

    checked: int
    """Ids compared: each stream's up to its first near tie."""
    wrong: int
    """Streams that differ before it."""
    of: int
    """Ids in all streams."""

    @property
    def holds(self) -> bool:
        """True if the contestant's figures are valid: ids were compared and none differs."""
        return self.checked > 0 and self.wrong == 0


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant's figures at one batch size, over all steady rounds."""

    rates: Mapping[str, Spread]
    """By name, see `RATES`."""
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    """Our rates over this contestant's, within each round; empty for ours."""
    waits: Mapping[str, Spread] = field(default_factory=dict)
    """By name, see `WAITS`; empty where it does not tell."""


def timing(answer: Mapping[str, Any], prompt_tokens: int, output: int) -> Timing:
    """A worker's answer as a timing; decoding is the whole run minus the prompts alone.

    Raises ValueError for a run in which a stream ended early, or that was too short to be measured.
    """
    lengths: list[int] = answer["lengths"]
    if any(length != output for length in lengths):
        raise ValueError(f"streams of {min(lengths)} to {max(lengths)} tokens instead of {output}")
    wall, cpu = float(answer["prefill_s"]), float(answer["prefill_cpu_s"])
    decode, decode_cpu = float(answer["total_s"]) - wall, float(answer["total_cpu_s"]) - cpu
    if min(wall, cpu, decode, decode_cpu) <= 0:
        raise ValueError("a run too short to be measured; use a longer --output-len")
    waits: Mapping[str, float] = answer.get("waits") or {}
    return Timing(len(lengths) * (output - 1), prompt_tokens, wall, decode, cpu, decode_cpu, waits)


def rotate(items: Sequence[T], turn: int) -> list[T]:
    """The items from the `turn`-th on, then the others: each is first in turn."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


def clearest_prompts(prompts: Sequence[T], leads: Sequence[float], count: int) -> list[T]:
    """The `count` prompts with the clearest first id: with random weights most are near ties, which show nothing.

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
    """By contestant, over the steady rounds; empty where there is none.

    A contestant that is missing in one of them, because it failed, is left out.
    """
    steady = [one for one in rounds if one.steady]
    names = [name for name in steady[0].timings if all(name in one.timings for one in steady)] if steady else []
    rates = {name: [one.timings[name].rates for one in steady] for name in names}
    by_name = {}
    for name, own in rates.items():
        ratios = {}
        if name != ours and ours in rates:
            pairs = list(zip(rates[ours], own, strict=True))
            ratios = {kind: spread([best[kind] / peer[kind] for best, peer in pairs]) for kind in RATES}
        timings = [one.timings[name] for one in steady]
        waits = {kind: spread([one.waits[kind] for one in timings]) for kind in WAITS if kind in timings[0].waits}
        by_name[name] = Standing({kind: spread([one[kind] for one in own]) for kind in RATES}, ratios, waits)
    return by_name
