"""What other sampling parameters would have left of a step, from the alternatives that were sent of it.

The sampler's stages are those of the engine: temperature, top-k, top-p of what is left, min-p, and a draw where the
cumulative sum in order of ids passes the stream's uniform number. What the alternatives do not determine is a bound
that holds for every distribution they can be part of. A token that was not sent counts as less likely than the last
one that was: where they are exactly as likely, which of the two top-k keeps is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from lmtool.core.logprobs.distribution import LARGEST_VOCABULARY, ROUNDING, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.logprobs.distribution import Distribution

_LOGIT = 8e-6
"""Nats that a logit and its logprob may be off in float32."""
_SUM = 2e-5
"""Share that sums of float32 may be off."""
_UNIFORM = 2e-6
"""How near a sum may come to the uniform number before the draw is left open."""
_COLDEST = 1e-5
"""The lowest temperature above 0 that the engine divides by."""
_CLOSE = 1e-3
"""Bounds nearer than this are one number for people."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Sampling parameters, as `SamplingParams` has them."""

    temperature: float = 1.0
    """0: the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Chance(Generic[Token]):
    """A token and what these parameters make of it."""

    token: Token | None
    """None: all tokens together that were not sent."""
    before: float
    """Its probability as it was sent; for those not sent what is left."""
    low: float
    high: float
    """Bounds of its probability under these parameters."""
    stays: bool | None
    """True if it can be sampled; None where that is not known."""

    @property
    def is_exact(self) -> bool:
        """True if it is one number."""
        return self.high - self.low < _CLOSE


@dataclass(frozen=True, slots=True)
class WhatIf(Generic[Token]):
    """A step under other parameters."""

    chances: tuple[Chance[Token], ...]
    """The tokens that were sent, best first."""
    other: Chance[Token] | None
    """All others; None where every token of the vocabulary was sent."""
    weights: tuple[tuple[float, float], ...]
    """Bounds of the weights of `chances`, 0 where a token may be cut."""
    other_weight: float
    """The most that all others may weigh."""

    @property
    def is_exact(self) -> bool:
        """True if every probability is one number, and who can be sampled is known."""
        parts = [*self.chances, *(() if self.other is None else (self.other,))]
        return all(one.is_exact and one.stays is not None for one in parts)


@dataclass(frozen=True, slots=True)
class Draw(Generic[Token]):
    """What a uniform number would have drawn."""

    token: Token | None
    """None where that is not known."""
    possible: tuple[Token, ...]
    """All tokens of those sent that it may be."""
    other: bool
    """True if it may be a token that was not sent."""


def what_if(distribution: Distribution[Token], knobs: Knobs, vocab_size: int | None) -> WhatIf[Token] | None:
    """A step under other parameters; None where no alternatives are known, or they make no distribution.

    distribution: the one before temperature and truncation.
    """
    top = distribution.top
    if not top or not distribution.is_normalised:
        return None
    step = _Step(distribution, knobs, vocab_size or LARGEST_VOCABULARY)
    return step.greedy() if knobs.temperature <= 0 else step.sampled()


class _Step(Generic[Token]):
    """Bounds of weights, those of the best token 1, before and after each cut."""

    def __init__(self, distribution: Distribution[Token], knobs: Knobs, vocabulary: int) -> None:
        self._top = distribution.top
        self._beyond = distribution.beyond
        self._knobs = knobs
        known = [*self._top, *(() if self._beyond is None else (self._beyond,))]
        self._known = known
        self._unseen = max(0, vocabulary - len(known))
        self._vocabulary = vocabulary
        """Tokens that were not sent."""
        ps = [math.exp(p) for _, p in known]
        left = max(0.0, 1.0 - math.fsum(ps)) if self._unseen else 0.0
        self.rest = left
        rounding = ROUNDING + _SUM * math.fsum(ps) if self._unseen else 0.0
        self._power = 1.0 / max(knobs.temperature, _COLDEST)
        best = self._top[0][1]
        self._slack = min(1.0, _LOGIT * self._power + _SUM)
        self._weights = [math.exp(max(-700.0, (p - best) * self._power)) for _, p in known]
        scale = math.exp(-best)
        self._left = max(0.0, left - rounding) * scale, (left + rounding) * scale if self._unseen else 0.0
        self._largest = math.exp(self._top[-1][1] - best)
        """The most that a token may have had that was not sent, as a share of the best."""

    def greedy(self) -> WhatIf[Token]:
        """The likeliest token alone; several where they are equally likely, of which the first id is taken."""
        best = self._top[0][1]
        tied = [one for one, p in self._known if p >= best]
        least = min(tied, key=_order)
        chances = tuple(
            Chance(one, math.exp(p), float(one == least), float(one == least), one == least) for one, p in self._known
        )
        weights = tuple((one.low, one.high) for one in chances)
        other: Chance[Token] | None = Chance(None, self.rest, 0.0, 0.0, stays=False) if self._unseen else None
        return WhatIf(chances, other, weights, 0.0)

    def sampled(self) -> WhatIf[Token]:
        """The tokens that every cut leaves, with bounds of their probabilities."""
        lows = [weight * (1 - self._slack) for weight in self._weights]
        highs = [weight * (1 + self._slack) for weight in self._weights]
        in_top_k = [self._in_top_k(i) for i in range(len(self._known))]
        others = self._others()
        whole = (
            math.fsum(low for low, stays in zip(lows, in_top_k, strict=True) if stays) + others[0],
            math.fsum(high for high, stays in zip(highs, in_top_k, strict=True) if stays is not False) + others[1],
        )
        nucleus = self._nucleus(lows, highs, whole)
        stays = [
            _both(_both(in_top_k[i], nucleus[i]), self._likely(lows[i], highs[i])) if i else True
            for i in range(len(self._known))
        ]
        other_stays, others = self._others_after(others, lows, whole)
        least = math.fsum(low for low, one in zip(lows, stays, strict=True) if one)
        most = math.fsum(high for high, one in zip(highs, stays, strict=True) if one is not False)
        if self._knobs.top_p < 1 and self._knobs.min_p <= 0:
            # The nucleus has at least its share of what top-k leaves.
            least = max(least, self._knobs.top_p * whole[0] * (1 - _SUM))
        total = max(least, 1 - self._slack) + (others[0] if self._knobs.top_p >= 1 else 0.0), most + others[1]
        return self._result(lows, highs, stays, other_stays, others, total)

    def _result(
        self,
        lows: Sequence[float],
        highs: Sequence[float],
        stays: Sequence[bool | None],
        other_stays: bool | None,
        others: tuple[float, float],
        total: tuple[float, float],
    ) -> WhatIf[Token]:
        weights = [
            (0.0, 0.0) if one is False else (low if one else 0.0, high)
            for low, high, one in zip(lows, highs, stays, strict=True)
        ]
        chances = tuple(
            Chance(token, math.exp(p), low / total[1], min(1.0, high / max(total[0], high)) if high else 0.0, one)
            for (token, p), (low, high), one in zip(self._known, weights, stays, strict=True)
        )
        sure = math.fsum(low for low, _ in weights)
        other: Chance[Token] | None = None
        if self._unseen:
            low = others[0] / (others[0] + math.fsum(high for _, high in weights)) if others[0] else 0.0
            high = min(1.0, others[1] / (others[1] + sure)) if others[1] else 0.0
            other = Chance(None, self.rest, low, high, other_stays)
        return WhatIf(chances, other, tuple(weights), others[1])

    def _in_top_k(self, i: int) -> bool | None:
        """True if top-k leaves a known token; equally likely ones at the cut cannot be told apart."""
        k, sent = self._knobs.top_k, len(self._top)
        if not 0 < k < self._vocabulary:
            return True
        if i >= sent:
            return False if k <= sent else None
        if k >= sent:
            return True
        edge, behind, own = self._top[k - 1][1], self._top[k][1], self._top[i][1]
        tied = edge - behind <= _LOGIT
        if tied and abs(own - edge) <= 2 * _LOGIT:
            return None
        return i < k

    def _others(self) -> tuple[float, float]:
        """Bounds of what the tokens weigh together that were not sent and that top-k may leave."""
        k, known = self._knobs.top_k, len(self._top)
        left = self._unseen if not 0 < k < self._vocabulary else min(self._unseen, max(0, k - known))
        surely = left if not 0 < k < self._vocabulary else max(0, left - (self._beyond is not None))
        low = _sum_of_largest(self._left, self._largest, self._unseen, surely, self._power)[0]
        high = _sum_of_largest(self._left, self._largest, self._unseen, left, self._power)[1]
        return low * (1 - self._slack), high * (1 + self._slack)

    def _nucleus(
        self, lows: Sequence[float], highs: Sequence[float], whole: tuple[float, float]
    ) -> Sequence[bool | None]:
        """True if top-p leaves each known token: those before it must have less than its share."""
        share = self._knobs.top_p
        if share >= 1:
            return [True] * len(lows)
        result: list[bool | None] = []
        low = high = 0.0
        for i in range(len(self._top)):
            result.append(self._before_cut(low, high, whole))
            low, high = low + lows[i], high + highs[i]
        if self._beyond is not None:
            result.append(self._before_cut(low, whole[1], whole))
        return result

    def _before_cut(self, low: float, high: float, whole: tuple[float, float]) -> bool | None:
        """True if a token stays that has between `low` and `high` before it. whole: bounds of the sum of all."""
        share = self._knobs.top_p
        # What stands before a token is in the sum as well: the same error in both does not count twice.
        if high * (1 + _SUM) < share * max(whole[0], high) * (1 - _SUM) and high < share * whole[0] * (1 - _SUM):
            return True
        return False if low * (1 - _SUM) >= share * whole[1] * (1 + _SUM) else None

    def _likely(self, low: float, high: float) -> bool | None:
        """True if min-p leaves a token of this weight."""
        least = self._knobs.min_p
        if low >= least * (1 + _SUM):
            return True
        return False if high < least * (1 - _SUM) else None

    def _others_after(
        self, others: tuple[float, float], lows: Sequence[float], whole: tuple[float, float]
    ) -> tuple[bool | None, tuple[float, float]]:
        """True if any token stays that was not sent, and bounds of what they weigh together."""
        most = self._largest**self._power * (1 + self._slack)
        sent = math.fsum(lows[: len(self._top)])
        cut = others[1] <= 0 or most < self._knobs.min_p * (1 - _SUM)
        cut = cut or (self._knobs.top_p < 1 and self._before_cut(sent, sent, whole) is False)
        if cut:
            return False, (0.0, 0.0)
        if self._knobs.top_p < 1 or self._knobs.min_p > 0:
            return None, (0.0, others[1])
        return (True if others[0] > 0 else None), others


def _both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return True if a and b else None


def _sum_of_largest(
    total: tuple[float, float], largest: float, tokens: int, count: int, power: float
) -> tuple[float, float]:
    """Bounds of the sum of the `count` largest of some powers, of `tokens` numbers that are at most `largest`.

    total: bounds of the sum of the numbers themselves. A convex power (above 1) is largest in few large pieces and
    least when spread evenly; a concave one the other way around.
    """
    low, high = total
    if not count or not tokens or high <= 0 or largest <= 0:
        return 0.0, 0.0
    high = min(high, largest * tokens)
    if power >= 1:
        pieces = min(count, int(high / largest))
        part = max(0.0, high - pieces * largest) if pieces < count else 0.0
        most = pieces * largest**power + part**power
        least = count * (low / tokens) ** power
    else:
        most = count * min(largest, high / count) ** power
        least = largest ** (power - 1) * low * count / tokens
    return min(least, most), most


def draw(step: WhatIf[int], number: float) -> Draw[int]:
    """What the engine would have drawn. number: the stream's uniform number there, see `uniform`."""
    pairs = sorted(
        (token, weight)
        for chance, weight in zip(step.chances, step.weights, strict=True)
        if weight[1] > 0 and (token := chance.token) is not None
    )
    lows, highs = [low for _, (low, _) in pairs], [high for _, (_, high) in pairs]
    all_low, all_high, other = math.fsum(lows), math.fsum(highs), step.other_weight
    before_low = before_high = 0.0
    sure: int | None = None
    possible: list[int] = []
    for token, (low, high) in pairs:
        after_low, after_high = all_low - before_low - low, all_high - before_high - high
        begins = _share(before_low, high + after_high + other), _share(before_high + other, low + after_low)
        ends = _share(before_low + low, after_high + other), _share(before_high + high + other, after_low)
        if begins[1] + _UNIFORM <= number < ends[0] - _UNIFORM:
            sure = token
        if begins[0] - _UNIFORM <= number <= ends[1] + _UNIFORM:
            possible.append(token)
        before_low, before_high = before_low + low, before_high + high
    if sure is not None:
        return Draw(sure, (sure,), other=False)
    return Draw(possible[0] if len(possible) == 1 and not other else None, tuple(possible), other=other > 0)


def _share(part: float, rest: float) -> float:
    whole = max(0.0, part) + max(0.0, rest)
    return max(0.0, part) / whole if whole else 0.0


def _order(token: object) -> tuple[int, str]:
    """Ids in their order; texts behind them."""
    return (token, "") if isinstance(token, int) else (1 << 62, str(token))
