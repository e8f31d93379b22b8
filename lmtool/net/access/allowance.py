"""What one key, or one client address, uses at the moment and in the last minute, against its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import RateLimitError

if TYPE_CHECKING:
    from lmtool.net.access.keys import Limits

MINUTE = 60.0
"""Seconds."""


@dataclass(slots=True)
class Budget:
    """A number of units a minute: full at first, refilled evenly, never above one minute's worth (a token bucket).

    It may be overdrawn, by tokens that are counted only when they have been computed; nothing new begins then before
    the debt is paid off. Time is an argument, in seconds.
    """

    used: float = 0.0
    """Units that are not refilled yet."""
    updated: float = 0.0

    def spend(self, amount: float, limit: int | None, now: float) -> None:
        """Count units. Without a limit nothing is counted."""
        if limit is not None:
            self._refill(limit, now)
            self.used += amount

    def wait(self, limit: int | None, now: float) -> float:
        """Seconds until one more unit may be used; 0 for at once."""
        if limit is None:
            return 0.0
        self._refill(limit, now)
        excess = self.used + 1 - limit
        return max(0.0, excess * MINUTE / limit)

    def _refill(self, limit: int, now: float) -> None:
        self.used = max(0.0, self.used - max(0.0, now - self.updated) * limit / MINUTE)
        self.updated = now


@dataclass(slots=True)
class Allowance:
    """The use of one key or address. Each `check_...` raises `RateLimitError`, and counts nothing."""

    owner: str
    """Whose limits these are, for sentences."""
    limits: Limits
    connections: int = 0
    streams: int = 0
    waiting: int = 0
    """Streams without a token so far."""
    requests: Budget = field(default_factory=Budget)
    tokens: Budget = field(default_factory=Budget)
    refused: int = 0
    """Requests that a limit has refused."""

    @property
    def idle(self) -> bool:
        """True if nothing runs."""
        return not self.connections and not self.streams

    def is_fresh(self, now: float) -> bool:
        """True if it says no more than a new one would."""
        limits = self.limits
        for budget, limit in ((self.requests, limits.requests_per_minute), (self.tokens, limits.tokens_per_minute)):
            budget.spend(0, limit, now)
        return self.idle and not self.requests.used and not self.tokens.used

    def check_connection(self) -> None:
        """Raise where one more connection would be too many."""
        self._check_count("connections", self.connections, self.limits.connections)

    def check_request(self, now: float) -> None:
        """Raise where this minute's requests or tokens are used up."""
        self._check_budget("requests_per_minute", self.requests, self.limits.requests_per_minute, now)
        self._check_budget("tokens_per_minute", self.tokens, self.limits.tokens_per_minute, now)

    def check_stream(self) -> None:
        """Raise where one more stream would be too many."""
        self._check_count("streams", self.streams, self.limits.streams)
        self._check_count("queue", self.waiting, self.limits.queue)

    def _check_count(self, name: str, count: int, limit: int | None) -> None:
        if limit is not None and count >= limit:
            raise self._excess(f"{name} of {self.owner}: {limit} at once, and {count} there are", 1)

    def _check_budget(self, name: str, budget: Budget, limit: int | None, now: float) -> None:
        if seconds := budget.wait(limit, now):
            raise self._excess(f"{name} of {self.owner}: {limit}, and they are used up", math.ceil(seconds))

    def _excess(self, problem: str, seconds: int) -> RateLimitError:
        self.refused += 1
        error = RateLimitError(f"above the limit {problem}", f"try again in {seconds} s")
        error.retry_after = seconds
        return error
