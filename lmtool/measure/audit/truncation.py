"""What temperature, truncation and penalties do to a distribution, and which of it a server's logprobs show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.measure.audit.evidence import Kind, Name, Token

MOST = 8
"""Tokens that a truncation leaves at most."""
_GAP = 0.1
"""Nats that rounding does not cross."""
_MASS = 0.7
"""Probability of what is left, above which a dozen draws hardly show whether anything is left out."""
CLEAR = 4.0
"""How many times better one explanation must fit than the other."""
EXACT = 1e-5
"""Nats: the rounding of a number that was computed once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncation that leaves the best tokens of a distribution, and how to ask for it in three ways."""

    survivors: frozenset[Name]
    count: int
    top_p: float
    min_p: float
    lowest: float
    """Logprob of the least likely one that is left."""
    mass: float
    """Probability of all that are left."""
    gap: float
    """Nats between that one and the best one that is left out."""


def cut_of(token: Token) -> Cut | None:
    """Where a distribution is cut best: at a wide gap among its best tokens, and where much is left out.

    None where names of tokens are not unique, or there are too few.
    """
    if len(token.best) < len(token.alternatives):
        return None  # tokens of one name: what is left is not known
    ranked = sorted(token.best.items(), key=lambda one: -one[1])[: MOST + 1]
    cuts = [_cut(ranked, count) for count in range(2 if len(ranked) > 2 else 1, len(ranked))]
    return max(cuts, key=lambda one: (one.gap > _GAP, one.mass < _MASS, one.gap), default=None)


def _cut(ranked: Sequence[tuple[Name, float]], count: int) -> Cut:
    kept, following = ranked[:count], ranked[count][1]
    masses = [math.exp(value) for _, value in kept]
    best, last = kept[0][1], kept[-1][1]
    return Cut(
        frozenset(name for name, _ in kept),
        count,
        sum(masses) - masses[-1] / 2,
        math.exp((last + following) / 2 - best),
        last,
        sum(masses),
        last - following,
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Which of two explanations fits logprobs better, and how well each does."""

    kind: Kind | None
    """None where neither fits, or both do."""
    raw: float
    """Largest deviation in nats if they were the model's own."""
    processed: float
    """The same if they were of the distribution that is sampled from."""

    @property
    def off(self) -> float:
        """Deviation from the better explanation."""
        return min(self.raw, self.processed)

    def fits(self, tolerance: float) -> bool:
        """True if one of them fits at all."""
        return self.off <= tolerance


def _reading(raw: float, processed: float, tolerance: float) -> Reading:
    better: Kind = "raw" if raw <= processed else "processed"
    low, high = sorted((raw, processed))
    clear = low <= tolerance and high > max(CLEAR * low, EXACT)
    return Reading(better if clear else None, raw, processed)


def read_temperature(plain: Token, other: Token, temperature: float, tolerance: float) -> Reading:
    """Logprobs at a temperature against those at 1 of the same position."""
    base, found = plain.best, other.best
    common = base.keys() & found.keys()
    raw = max((abs(found[name] - base[name]) for name in common), default=math.inf)
    return _reading(raw, _spread({name: found[name] - base[name] / temperature for name in common}), tolerance)


def read_truncation(plain: Token, other: Token, cut: Cut, tolerance: float) -> Reading:
    """Logprobs under a truncation against those without. Processed ones leave out what cannot come."""
    base, found = plain.best, other.best
    common = base.keys() & found.keys()
    raw = max((abs(found[name] - base[name]) for name in common), default=math.inf)
    kept = [name for name in cut.survivors if name in found]
    beyond = [math.exp(found[name]) for name in common - cut.survivors]
    scaled = [abs(found[name] - (base[name] - math.log(cut.mass))) for name in kept]
    return _reading(raw, max((*scaled, *beyond), default=math.inf), tolerance)


def read_penalty(plain: Token, other: Token, penalties: Mapping[Name, float], tolerance: float) -> Reading:
    """Logprobs under penalties, by token, against those without in the same context."""
    base, found = plain.best, other.best
    common = base.keys() & found.keys()
    raw = max((abs(found[name] - base[name]) for name in common), default=math.inf)
    shifted = {name: found[name] - (base[name] - penalties.get(name, 0.0)) for name in common}
    return _reading(raw, _spread(shifted), tolerance)


def read_constraint(free: Token, constrained: Token, tolerance: float) -> Reading:
    """Logprobs under a constraint against those without; what it forbids is left out of processed ones."""
    base, found = free.best, constrained.best
    common = base.keys() & found.keys()
    shifts = {name: found[name] - base[name] for name in common}
    raw = max((abs(one) for one in shifts.values()), default=math.inf)
    lowest = min(shifts.values(), default=0.0)
    spread = _spread(shifts) if lowest >= -tolerance else math.inf  # a mask only makes the others likelier
    # Unchanged is a shift by nothing, so both fit then: it is called raw.
    kind: Kind | None = "raw" if raw <= tolerance else "processed" if spread <= tolerance else None
    return Reading(kind, raw, spread)


def _spread(values: Mapping[Name, float]) -> float:
    """How far these are from being one number: half of what lies between the least and the greatest."""
    if len(values) < 2:
        return math.inf
    return (max(values.values()) - min(values.values())) / 2
