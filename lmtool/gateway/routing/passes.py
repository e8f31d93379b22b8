"""One request's way over the members of a pool: each once a pass, pauses between passes, an end in any case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.gateway.routing.health import Health


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a request goes on when members fail."""

    max_retries: int = 2
    """Passes after the first one."""
    base_multiplier: float = 2.0
    """Each pause is longer than the one before by this factor."""
    min_delay: float = 0.2
    """Seconds of the first pause."""
    max_delay: float = 2.0
    deadline: float = 120.0
    """Seconds for all passes, pauses included, until the answer begins."""

    def delay(self, number: int) -> float:
        """Seconds of a pause, counted from 0."""
        return min(self.min_delay * self.base_multiplier ** min(number, 64), self.max_delay)


@dataclass(frozen=True, slots=True)
class Try:
    """Call this member."""

    member: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for these seconds, then ask for the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No member has answered."""

    reason: Literal["exhausted", "unavailable", "deadline", "refused"]
    """`exhausted`: all passes failed; `unavailable`: no member can be called before the last pass; `refused`: every
    member said that the request is at fault."""
    seconds: float = 0.0
    """After which it is worth another try."""


Step: TypeAlias = Try | Wait | GiveUp


@dataclass(slots=True)
class Passes:
    """The next step of one request; pure. Each pass orders the members that are available anew."""

    retry: RetryPolicy
    started: float
    health: Mapping[int, Health]
    """Of all members that could serve the request."""
    order: Callable[[Sequence[int], float], Sequence[int]]
    """A strategy: these members, which are available, in the order in which to try them."""
    _queue: list[int] | None = None
    _pauses: int = 0
    _excluded: set[int] = field(default_factory=set)

    def exclude(self, member: int) -> None:
        """Call this member no more: it would say again that the request is at fault."""
        self._excluded.add(member)

    def step(self, now: float) -> Step:
        """What to do next. After a `Try`, record in the member's health how it went before calling this again."""
        if now - self.started >= self.retry.deadline:
            return GiveUp("deadline", self._soonest(now))
        if self._queue is None:
            available = [member for member in self._candidates() if self.health[member].available(now)]
            self._queue = list(self.order(available, now))
        while self._queue:
            member = self._queue.pop(0)
            if member not in self._excluded and self.health[member].available(now):  # of now: others call it too
                return Try(member)
        return self._after_pass(now)

    def _candidates(self) -> list[int]:
        return [member for member in self.health if member not in self._excluded]

    def _soonest(self, now: float) -> float:
        """Seconds until a member could be called."""
        return min((self.health[member].available_at(now) - now for member in self._candidates()), default=0.0)

    def _after_pass(self, now: float) -> Step:
        if not self._candidates():
            return GiveUp("refused")
        soonest = self._soonest(now)
        if self._pauses >= self.retry.max_retries:
            return GiveUp("exhausted", soonest)
        remaining = sum(self.retry.delay(number) for number in range(self._pauses, self.retry.max_retries))
        if soonest > remaining:
            return GiveUp("unavailable", soonest)
        seconds = self.retry.delay(self._pauses)
        if now + seconds - self.started >= self.retry.deadline:
            return GiveUp("deadline", soonest)
        self._pauses += 1
        self._queue = None
        return Wait(seconds)
