"""What is known of a step's distribution from the few tokens that a server sends of it; what is a bound says so."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Token = TypeVar("Token", bound=Hashable)
"""An id, or a text where a protocol has no ids."""

LARGEST_VOCABULARY = 2**18
"""Ids; no common tokenizer has more."""
ROUNDING = 1e-6
"""Probability that float32 logprobs may lack or have too much in their sum."""
_TOO_MUCH = 1.001
"""A sum of probabilities above this is no rounding."""


def bits(logprob: float) -> float:
    """Surprisal in bits of a natural-log probability."""
    return max(0.0, -logprob / math.log(2))


def probability(logprob: float) -> float:
    """The probability of a logprob; 1 for one above 0, which some servers send."""
    return math.exp(min(logprob, 0.0))


def perplexity(logprob: float | None, tokens: int) -> float | None:
    """Perplexity of `tokens` tokens with this logprob in all; None for none, infinite above what a float can be."""
    if logprob is None or not tokens:
        return None
    mean = -logprob / tokens
    return math.exp(mean) if mean < 700 else math.inf


def probabilities(logprobs: Iterable[float]) -> list[float]:
    """Probabilities of some tokens of one distribution; brought down to a sum of 1 where they exceed it."""
    ps = [math.exp(min(logprob, 50.0)) for logprob in logprobs]
    total = math.fsum(ps)
    return [p / total for p in ps] if total > _TOO_MUCH else ps


def is_normalised(logprobs: Iterable[float]) -> bool:
    """True if these can be logprobs of one distribution.

    Some servers send what sums to more than 1 (LMQL's with a temperature above 1): what is missing is then not known.
    """
    known = list(logprobs)
    return all(p <= ROUNDING for p in known) and math.fsum(map(math.exp, known)) <= _TOO_MUCH


def rank_of(logprob: float, others: Iterable[float]) -> int:
    """Place of a token among others by logprob, 1 the likeliest; equally likely tokens share the better place."""
    return 1 + sum(other > logprob for other in others)


def ranks_of(best_first: Sequence[float]) -> list[int]:
    """`rank_of` each of these logprobs among all of them, in one pass."""
    places: dict[float, int] = {}
    return [places.setdefault(logprob, place) for place, logprob in enumerate(best_first, 1)]


@dataclass(frozen=True, slots=True)
class Rank:
    """Place of a token in its distribution, see `rank_of`."""

    place: int
    exact: bool = True
    """True if every likelier token was sent; otherwise the place is the least that it can be."""

    def __str__(self) -> str:
        return str(self.place) if self.exact else f">{self.place - 1}"

    def holds(self, compare: Callable[[float, float], bool], limit: float) -> bool | None:
        """True if a comparison of the rank with a limit holds; None where that cannot be known."""
        if self.exact:
            return compare(self.place, limit)
        nearest = max(float(self.place), limit)
        results = {compare(place, limit) for place in (self.place, nearest, nearest + 1)}
        return results.pop() if len(results) == 1 else None


@dataclass(frozen=True, slots=True)
class Distribution(Generic[Token]):
    """The most likely tokens of a step, and the one that was chosen."""

    top: tuple[tuple[Token, float], ...]
    """Token and logprob in nats, best first; no token that was left out is likelier than one of these."""
    beyond: tuple[Token, float] | None
    """The chosen token, where tokens that were left out may be likelier."""
    rank: Rank | None
    """Of the chosen token; None where nothing is known of it."""
    is_normalised: bool
    """True if the probabilities sum to at most 1; otherwise neither mass nor entropy is known."""

    @classmethod
    def of(
        cls,
        chosen: Token,
        logprob: float | None,
        alternatives: Sequence[tuple[Token, float]],
        k: int | None = None,
        *,
        unnormalised: bool = False,
    ) -> Distribution[Token]:
        """Read a list of alternatives: the likeliest tokens, best first, and maybe the chosen one behind them.

        logprob: of the chosen token, None where it was not sent. k: the request's `top_logprobs`, None where that is
        not known; fewer alternatives than that tell nothing, because servers have limits of their own. unnormalised:
        whether the logprobs are known to be no distribution's, only in its order.
        """
        own = dict(alternatives).get(chosen, logprob)
        if own is None:
            sound = not unnormalised and is_normalised(p for _, p in alternatives)
            return cls(tuple(alternatives), None, None, sound)
        others = tuple(one for one in alternatives if one[0] != chosen)
        place = rank_of(own, (p for _, p in others))
        whole = [own, *(p for _, p in others)]
        sound = not unnormalised and is_normalised(whole)
        exact = place <= len(others) or len(others) + 1 == len(alternatives) == k
        if not exact and sound:  # unless too little is left for a likelier one
            exact = 1.0 - math.fsum(map(math.exp, whole)) + ROUNDING < math.exp(own)
        rank = Rank(place, exact) if exact or place > 1 else None
        if not exact:
            return cls(others, (chosen, own), rank, sound)
        if len(others) < len(alternatives):
            return cls(tuple(alternatives), None, rank, sound)
        return cls((*others[: place - 1], (chosen, own), *others[place - 1 :]), None, rank, sound)

    @property
    def mass(self) -> float | None:
        """Probability of `top` together; None where it is not known."""
        return min(1.0, math.fsum(math.exp(p) for _, p in self.top)) if self.is_normalised else None

    @property
    def alternatives(self) -> tuple[tuple[Token, float], ...]:
        """All tokens that are known, the chosen one among them."""
        return self.top if self.beyond is None else (*self.top, self.beyond)

    def entropy(self, vocab_size: int | None) -> tuple[float, float] | None:
        """Least and largest entropy in bits of a distribution with these tokens; None where nothing is known.

        What was left out has the least entropy in pieces as large as the least likely token of `top` allows, the
        largest when it is spread evenly over all other ids. Where the size of the vocabulary is not known, it counts
        as `LARGEST_VOCABULARY`.
        """
        alternatives = self.alternatives
        if not alternatives or not self.is_normalised:
            return None
        ps = [math.exp(p) for _, p in alternatives]
        known, rest = math.fsum(map(_weighted, ps)), 1.0 - math.fsum(ps)
        largest = math.exp(self.top[-1][1]) if self.top else 1.0
        unseen = (vocab_size or LARGEST_VOCABULARY) - len(alternatives)
        if unseen <= 0:
            return known, known
        high = known + _spread(max(0.0, rest) + ROUNDING, unseen)
        return max(0.0, known + _pieces(max(0.0, rest - ROUNDING), largest)), high


def least_divergence(ours: Mapping[Token, float], theirs: Mapping[Token, float]) -> float | None:
    """Least KL divergence of theirs from ours in nats: tokens of both one by one, everything else as one class.

    ours, theirs: logprobs of some tokens of each distribution. Lumping tokens together never makes the divergence
    larger (data-processing inequality). None where they share no token, or one of them is not normalised.
    """
    shared = ours.keys() & theirs.keys()
    if not shared or not (is_normalised(ours.values()) and is_normalised(theirs.values())):
        return None
    p, q = ([math.exp(values[token]) for token in shared] for values in (ours, theirs))
    p.append(max(0.0, 1.0 - math.fsum(p)))
    q.append(max(ROUNDING, 1.0 - math.fsum(q)))
    return max(0.0, math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0 and y > 0))


def _weighted(p: float) -> float:
    """A token's part of the entropy, in bits."""
    return -p * math.log2(p) if p > 0 else 0.0


def _pieces(mass: float, largest: float) -> float:
    """Entropy's part of a mass in pieces as large as they may be, in bits."""
    if largest <= 0:
        return 0.0
    whole, part = divmod(mass, largest)
    return whole * _weighted(largest) + _weighted(part)


def _spread(mass: float, tokens: int) -> float:
    """Entropy's part of a mass spread evenly over tokens, in bits."""
    return mass * math.log2(tokens / mass)


def sum_by_name(alternatives: Sequence[tuple[Token, float]]) -> Mapping[Token, float]:
    """Logprobs by name, those of one name added up: several ids may spell the same text."""
    sums: dict[Token, float] = {}
    for name, logprob in alternatives:
        before = sums.get(name)
        sums[name] = logprob if before is None else _sum_of(before, logprob)
    return sums


def _sum_of(a: float, b: float) -> float:
    """Log of the sum of two probabilities."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))
