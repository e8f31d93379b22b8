"""A pool: members under one name, the strategy that orders them, and what they have done."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from lmtool.core.types import ChatPrompt
from lmtool.gateway.routing.prefixes import PrefixTable
from lmtool.gateway.routing.strategies import STRATEGIES, Candidate, LeastLatency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.gateway.pools.cache import AnswerCache
    from lmtool.gateway.pools.config import PoolConfig
    from lmtool.gateway.pools.member import Member
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.gateway.routing.strategies import Strategy
    from lmtool.net.telemetry.observation import Observation
    from lmtool.net.telemetry.spans import Tracer
    from lmtool.net.telemetry.telemetry import Telemetry

EXPECTED_TOKENS = 500
"""Of an answer without a limit, to compare prices."""
CHARACTERS_PER_TOKEN = 4
_PUBLIC = frozenset({"id", "provider", "model", "state", "resting_seconds", "reason"})
"""What every client of a pool may know of a member."""
LATENCIES = 512
"""Answers whose latencies a pool's status goes by."""


class Pool:
    """Members under one name; belongs to one event loop."""

    def __init__(
        self,
        config: PoolConfig,
        members: Sequence[Member],
        cache: AnswerCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        telemetry: Telemetry | None = None,
    ) -> None:
        """clock: seconds. telemetry: observes streams of the unified API."""
        self.config = config
        self.members = members
        self.cache = cache
        self.clock = clock
        self._telemetry = telemetry
        self.requests = 0
        """Since the start, those from the cache included."""
        self.cached = 0
        """Answers from the cache."""
        self.seconds: deque[float] = deque(maxlen=LATENCIES)
        """Until recent answers began."""
        self._prefixes = PrefixTable()
        strategies = [self._strategy() for _ in range(2)]
        self._strategies = strategies if config.strategy == "least_latency" else strategies[:1] * 2
        """For whole answers and for streams: a token takes longer where it waits for all others."""

    def _strategy(self) -> Strategy:
        if self.config.strategy == "least_latency":
            return LeastLatency({at: member.config.latency for at, member in enumerate(self.members)})
        return STRATEGIES[self.config.strategy]()

    @property
    def id(self) -> str:
        """Its name."""
        return self.config.id

    def observe(self) -> Observation | None:
        """The observation of a request that begins now; None where nothing is counted."""
        return None if self._telemetry is None else self._telemetry.observe_pool(self.id)

    @property
    def tracer(self) -> Tracer | None:
        """Begins the spans of calls; None: there are none."""
        return None if self._telemetry is None else self._telemetry.tracer

    def order(self, request: PoolRequest, available: Sequence[int], now: float) -> list[int]:
        """Members in the order in which to try them."""
        prompt = ChatPrompt(request.chat.messages, request.chat.tools)
        known = self._prefixes.matches(prompt) if self.config.strategy == "least_loaded" else {}
        candidates = [
            Candidate(
                at, self.members[at].running, known.get(at, 0), self.members[at].config.weight, self._cost(at, request)
            )
            for at in available
        ]
        ordered = [one.member for one in self._strategies[request.chat.stream].order(candidates, now)]
        if ordered and self.config.strategy == "least_loaded":
            self._prefixes.add(prompt, ordered[0])
        return ordered

    def _cost(self, member: int, request: PoolRequest) -> float:
        prices = self.members[member].config.prices
        if prices is None:
            return 0.0
        length = sum(len(message.content) for message in request.chat.messages)
        limit = request.chat.parameters.get("maxTokens")
        return prices.of(length // CHARACTERS_PER_TOKEN, limit if isinstance(limit, int) else EXPECTED_TOKENS)

    def record_latency(self, member: int, seconds: float, *, stream: bool) -> None:
        """Take how long a member took for a token."""
        self._strategies[stream].record_latency(member, seconds, self.clock())

    def public_status(self) -> dict[str, object]:
        """Its members and whether they can be called, without counts and costs, which tell of all clients."""
        states = [member.status(self.clock()) for member in self.members]
        members = [{name: value for name, value in state.items() if name in _PUBLIC} for state in states]
        return {"id": self.id, "strategy": self.config.strategy, "models": members}

    def status(self) -> dict[str, object]:
        """Its state for people and programs; nothing secret."""
        now, recent = self.clock(), sorted(self.seconds)
        costs = [member.totals.cost for member in self.members if member.config.prices is not None]
        return {
            "id": self.id,
            "strategy": self.config.strategy,
            "requests": self.requests,
            "cached": self.cached,
            "p50_seconds": round(recent[len(recent) // 2], 4) if recent else None,
            "cost": round(sum(costs), 6) if costs else None,
            "models": [member.status(now) for member in self.members],
        }
