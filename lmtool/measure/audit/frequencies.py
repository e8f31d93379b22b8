"""True if tokens come as often as they are claimed to: a test by betting, with a proven bound on false alarms.

Each position of a sampled answer is an event: one of the alternatives, or any other token. If the claims are true, a
bettor who divides his capital by any other distribution `q` has, on average, never more than he began with; the
probability that his capital is ever multiplied by `1 / rate` is at most `rate` (Ville's inequality). That holds for
any number of draws, any model, and any dependence between positions, so there is nothing to approximate. The bets
below stand for what goes wrong in practice; their mean is such a capital too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import is_clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.measure.audit.evidence import Name, Token

RATE = 1e-6
"""Probability of a false alarm, at most, of one test."""
_POWERS = (0.4, math.log(2), 0.85, 1.18, 1 / math.log(2), 2.2)
"""Claims that are too flat or too steep: other temperatures, logarithms of another base."""
_ROUNDING = 1e-5
"""Added to each claim, and ten times that to the rest: what rounding may hide."""


@dataclass(frozen=True, slots=True)
class Event:
    """One position: claims, and which came."""

    claims: tuple[float, ...]
    """Probabilities of the alternatives, best first."""
    rest: float
    """Probability of all other tokens together."""
    index: int | None
    """Which alternative came; None: another token."""


@dataclass(slots=True)
class Draws:
    """The capital of the bettors, and observed counts beside claimed ones."""

    capital: list[float] = field(default_factory=list)
    """Logarithm of each bettor's, in nats."""
    positions: int = 0
    highest: float = 0.0
    """Logarithm of the highest mean capital so far, in nats."""
    claimed_best: float = 0.0
    """Sum of the claims of the best alternatives."""
    best: int = 0
    """How often the best one came."""

    def add(self, event: Event) -> None:
        """Settle the bets on one position."""
        claims = [one + _ROUNDING for one in event.claims] + [event.rest + 10 * _ROUNDING]
        at = len(event.claims) if event.index is None else event.index
        bets = _bets(event)
        self.capital = self.capital or [0.0] * len(bets)
        for number, bet in enumerate(bets):
            # Never everything: a bettor who is ruined by one surprise tells nothing afterwards.
            self.capital[number] += math.log((0.9 * bet[at] + 0.1 * claims[at]) / claims[at])
        self.positions += 1
        self.highest = max(self.highest, self.log_capital)
        if event.claims:
            self.claimed_best += event.claims[0]
            self.best += event.index == 0

    @property
    def log_capital(self) -> float:
        """Logarithm of the mean capital, in nats."""
        if not self.capital:
            return 0.0
        top = max(self.capital)
        return top + math.log(sum(math.exp(one - top) for one in self.capital) / len(self.capital))

    @property
    def refuted(self) -> bool:
        """True if the claims are refuted at `RATE`."""
        return self.highest >= -math.log(RATE)


def _bets(event: Event) -> list[list[float]]:
    claims, rest = list(event.claims), event.rest
    count = len(claims) + 1
    bets = [_scaled([one**power for one in (*claims, rest)]) for power in _POWERS]
    bets += [_with_remainder(claims, power) for power in _POWERS]
    whole = sum(claims) + rest or 1.0
    best = [0.02 * one / whole for one in (*claims, rest)]
    best[0] += 0.98
    cut = _scaled([*claims, 0.01 * sum(claims)])
    flat = [(one / whole + 1 / count) / 2 for one in (*claims, rest)]
    return [bet or flat for bet in (*bets, best, cut, flat)]


def _with_remainder(claims: Sequence[float], power: float) -> list[float]:
    """Powers of the claims as they are, all other tokens the remainder; empty where they are more than 1."""
    powered = [one**power for one in claims]
    remainder = 1.0 - sum(powered)
    return [*powered, remainder] if remainder > 0 else []


def _scaled(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [one / total for one in weights] if total > 0 else [1 / len(weights)] * len(weights)


def claimed_event(token: Token, width: int) -> Event | None:
    """A position as its logprobs claim it; None where they say too little.

    width: alternatives that each token has.
    """
    ranked = _ranked(token, width)
    if not ranked or token.logprob is None:
        return None
    claims = tuple(math.exp(min(value, 0.0)) for _, value in ranked)
    return Event(claims, max(0.0, 1.0 - sum(claims)), _index(token, ranked))


def tempered_event(token: Token, width: int, temperature: float) -> Event | None:
    """A position as raw logprobs claim it for a temperature, given that one of the alternatives came; else None.

    Of the others nothing is known: their share depends on logprobs that are not shown.
    """
    ranked = _ranked(token, width)
    index = _index(token, ranked)
    if index is None or len(ranked) < 2:
        return None
    top = ranked[0][1]
    return Event(tuple(_scaled([math.exp((value - top) / temperature) for _, value in ranked])), 0.0, index)


def _ranked(token: Token, width: int) -> list[tuple[Name, float]]:
    """The best alternatives whatever came, without those whose names others share.

    The last one may be there only because it came, beside the best ones or in place of one: it belongs to the rest.
    """
    ranked = sorted(token.alternatives, key=lambda one: -one[1])
    if len(ranked) > width:
        extra = next((one for one in reversed(ranked) if one[0] == token.name), None)
        ranked = [one for one in ranked if one is not extra][:width]
    names = [name for name, _ in ranked]
    return [one for one in ranked[:-1] if is_clear(one[0]) and names.count(one[0]) == 1]


def _index(token: Token, ranked: Sequence[tuple[Name, float]]) -> int | None:
    return next((at for at, (name, _) in enumerate(ranked) if name == token.name), None)


def settle(tokens: Iterable[Token], event_of: Callable[[Token], Event | None]) -> Draws:
    """The bets on these tokens, in order."""
    draws = Draws()
    for token in tokens:
        event = event_of(token)
        if event is not None:
            draws.add(event)
    return draws
