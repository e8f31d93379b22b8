"""Strategies: in which order to try the members that could take a request.

A strategy returns each candidate once, best first, so no caller can loop. It remembers which it put first: time is an
argument, and nothing here waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

SLACK = 2
"""Streams that a member may run beyond the least loaded one and still count as near it; or a quarter more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that can take a request now, with what strategies decide by."""

    member: int
    """Its number among the caller's members, in the order of their list."""
    running: int = 0
    """Streams that have not ended."""
    prefix_blocks: int = 0
    """Leading blocks of the prompt that it was the last to receive, see `PrefixTable.matches`."""
    weight: int = 1
    """Its share, beside those of the others; from 1 on."""
    cost: float = 0.0
    """Of a token, in any one currency."""


class Strategy(Protocol):
    """Orders candidates, and remembers which one it put first."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        """Each candidate once, best first; empty where there are none."""

    def record_latency(self, member: int, seconds: float, now: float) -> None:
        """Take how long a member took for a token of an answer."""


class _Plain:
    """Latencies change nothing."""

    def record_latency(self, member: int, seconds: float, now: float) -> None:
        """Ignore it."""


class Priority(_Plain):
    """The list's own order: a later member is for when those before it cannot."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:  # noqa: ARG002  # the same always
        """By number."""
        return sorted(candidates, key=lambda candidate: candidate.member)


@dataclass
class RoundRobin(_Plain):
    """In turn, among those that can: a member that cannot leaves its share to all others alike."""

    _turns: dict[int, int] = field(default_factory=dict)
    """Member to the number of the request in which it was first."""
    _requests: int = 0

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:  # noqa: ARG002  # the same always
        """Least recently first."""
        ordered = self.waiting_longest(candidates)
        if ordered:
            self.choose(ordered[0].member)
        return ordered

    def waiting_longest(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that were first longest ago, or never, come first; those in equal places in the order of the list."""
        return sorted(candidates, key=lambda candidate: (self._turns.get(candidate.member, 0), candidate.member))

    def choose(self, member: int) -> None:
        """Record that a member is first."""
        self._requests += 1
        self._turns[member] = self._requests


@dataclass
class WeightedRoundRobin(_Plain):
    """Smooth weighted round robin: exact shares over each whole round, spread evenly within it (nginx's way)."""

    _credits: dict[int, int] = field(default_factory=dict)

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:  # noqa: ARG002  # the same always
        """By credit, which grows by the weight with each request, and pays the whole round when first."""
        for candidate in candidates:
            self._credits[candidate.member] = self._credits.get(candidate.member, 0) + candidate.weight
        ordered = sorted(candidates, key=lambda candidate: (-self._credits[candidate.member], candidate.member))
        if ordered:
            self._credits[ordered[0].member] -= sum(candidate.weight for candidate in candidates)
        return ordered


@dataclass(frozen=True, slots=True)
class LatencyPolicy:
    """How a member's latency is averaged and kept up to date."""

    decay: float = 0.06
    """Weight of a new value in the average."""
    warmup_samples: int = 3
    """Requests that it gets before averages decide."""
    update_interval: float = 30.0
    """Seconds after which it gets a request again where it had none."""


@dataclass
class _Latency:
    """A member's latency, as an exponentially weighted average."""

    seconds: float = math.inf
    """A token; infinite before the first answer."""
    choices: int = 0
    """How often it was first."""
    chosen_at: float = -math.inf
    """When it was first the last time, or answered."""


@dataclass
class LeastLatency:
    """The quickest first, once each has had its warm-up; a member that was long not first is tried again."""

    policies: Mapping[int, LatencyPolicy] = field(default_factory=dict)
    """By member; defaults for any other."""
    _latencies: dict[int, _Latency] = field(default_factory=dict)

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        """Those in warm-up in turn, then one whose average is old, then by average."""
        known = {candidate.member: self._latencies.setdefault(candidate.member, _Latency()) for candidate in candidates}

        def rank(candidate: Candidate) -> tuple[float, float, int]:
            latency, policy = known[candidate.member], self._policy(candidate.member)
            if latency.choices < policy.warmup_samples:
                return -2, latency.choices, candidate.member
            if now - latency.chosen_at >= policy.update_interval:
                return -1, latency.chosen_at, candidate.member
            return 0, latency.seconds, candidate.member

        ordered = sorted(candidates, key=rank)
        if ordered:
            first = known[ordered[0].member]
            first.choices, first.chosen_at = first.choices + 1, now
        return ordered

    def record_latency(self, member: int, seconds: float, now: float) -> None:
        """Move the member's average towards these seconds a token."""
        latency = self._latencies.setdefault(member, _Latency())
        average = seconds if math.isinf(latency.seconds) else latency.seconds
        latency.seconds, latency.chosen_at = average + self._policy(member).decay * (seconds - average), now

    def _policy(self, member: int) -> LatencyPolicy:
        return self.policies.get(member, LatencyPolicy())


@dataclass
class LeastCost(RoundRobin):
    """The cheapest first; those of one price in turn."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:  # noqa: ARG002  # the same always
        """By cost."""
        ordered = sorted(self.waiting_longest(candidates), key=lambda candidate: candidate.cost)
        if ordered:
            self.choose(ordered[0].member)
        return ordered


@dataclass
class LeastLoaded(RoundRobin):
    """The least loaded first; among those near it, one that knows a prefix of the prompt; equals in turn."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:  # noqa: ARG002  # the same always
        """By load, see `least_loaded`."""
        ordered = least_loaded(self.waiting_longest(candidates))
        if ordered:
            self.choose(ordered[0].member)
        return ordered


def least_loaded(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by their load; one near the least loaded that knows a prefix of the prompt goes before all others."""
    least = min((candidate.running for candidate in candidates), default=0)
    near = least + max(SLACK, least // 4)

    def rank(candidate: Candidate) -> tuple[int, int]:
        return -candidate.prefix_blocks if candidate.running <= near else 0, candidate.running

    return sorted(candidates, key=rank)


STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "priority": Priority,
    "round_robin": RoundRobin,
    "weighted_round_robin": WeightedRoundRobin,
    "least_latency": LeastLatency,
    "least_cost": LeastCost,
    "least_loaded": LeastLoaded,
}
"""By the names that configurations use."""
