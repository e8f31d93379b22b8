"""When requests may go to a member, by how its calls ended: rests, an error budget, one request alone after a rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.core.outcomes import Outcome

RATE_LIMIT_REST = 5.0
"""Seconds, where a rate limit comes without Retry-After."""
LONGEST_RATE_LIMIT_REST = 600.0
KEY_REST = 60.0
"""Seconds, doubled with each refusal in a row."""
MAX_BACKOFF = 30
"""First rests, the longest of the rests that double."""


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Faults that a member may have, as a token bucket that fills continuously."""

    tokens: int = 10
    seconds: float = 60.0
    """In which an empty bucket fills."""

    @property
    def seconds_per_token(self) -> float:
        """How long a token takes to come back."""
        return self.seconds / self.tokens


@dataclass(slots=True)
class Health:
    """The health of one member. Times are seconds of any one clock that never goes back.

    Call `available`, then `begin` with each call that is sent, and `record` with how it ended; `release` where that is
    not known, because the caller left.
    """

    budget: ErrorBudget = field(default_factory=ErrorBudget)
    check_interval: float = 2.0
    """Seconds of the first rest of a member that is unreachable."""
    resting_until: float = -math.inf
    outcome: Outcome | None = None
    """Why it rests, or rested last; None once a call has succeeded after that."""
    _tokens: float | None = None
    """None: all of the budget."""
    _refilled: float = 0.0
    _rests: int = 0
    """Rests in a row that double."""
    _half_open: bool = False
    _probing: bool = False

    def available(self, now: float) -> bool:
        """True if a request may go there: not while it rests, nor while the first one after a rest is on its way."""
        return now >= self.resting_until and not self._probing

    def rest_seconds(self, now: float) -> float:
        """How long it still rests; 0 where it does not."""
        return max(0.0, self.resting_until - now)

    def available_at(self, now: float) -> float:
        """The earliest time at which it could take a request, as far as is known."""
        return max(now, self.resting_until)

    def begin(self) -> bool:
        """Record that a request is sent; whether it is the one that goes alone after a rest."""
        self._probing = self._half_open
        return self._half_open

    def release(self, *, probe: bool) -> None:
        """Record that a call was given up without an outcome: after a rest, the next one goes alone in its place."""
        if probe:
            self._probing = False

    def record(self, outcome: Outcome, now: float, *, probe: bool = False) -> None:
        """Record how a call ended. probe: what `begin` returned for it.

        Success refunds nothing; of calls that began before a rest it does not end the rest.
        """
        self.release(probe=probe)
        if outcome.kind == "rate_limit":
            wanted = RATE_LIMIT_REST if outcome.retry_after is None else outcome.retry_after
            self._rest(outcome, now + min(max(wanted, 0.0), LONGEST_RATE_LIMIT_REST))
        elif outcome.kind in {"key_refused", "unreachable"}:
            if probe or not self._half_open:  # of a crowd that is refused together, one counts
                self._rests += 1
            first = KEY_REST if outcome.kind == "key_refused" else self.check_interval
            doublings = min(max(self._rests - 1, 0), MAX_BACKOFF)  # a member may be down for weeks
            self._rest(outcome, now + first * min(1 << doublings, MAX_BACKOFF))
        elif outcome.kind == "fault":
            self._spend(outcome, now)
        elif probe or not self._half_open:  # it answered, if only to refuse
            self.outcome, self._rests, self._half_open = None, 0, False

    def _rest(self, outcome: Outcome, until: float) -> None:
        self.outcome, self._half_open = outcome, True
        self.resting_until = max(self.resting_until, until)

    def _spend(self, outcome: Outcome, now: float) -> None:
        """Take a token of the budget; rest until there is a whole one where none is left."""
        self._tokens = max(self.tokens(now) - 1.0, 0.0)
        self._refilled = now
        if self._tokens < 1.0:
            self._rest(outcome, now + (1.0 - self._tokens) * self.budget.seconds_per_token)

    def tokens(self, now: float) -> float:
        """Faults that it may still have before it rests."""
        if self._tokens is None:
            return float(self.budget.tokens)
        refill = (now - self._refilled) / self.budget.seconds_per_token
        return min(self._tokens + refill, float(self.budget.tokens))
