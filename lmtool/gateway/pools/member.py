"""A member of a pool: its configuration, its provider, its health, and what it has done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.gateway.routing.health import Health

if TYPE_CHECKING:
    from lmtool.core.outcomes import Outcome
    from lmtool.gateway.pools.backend import Backend
    from lmtool.gateway.pools.config import MemberConfig
    from lmtool.protocol.providers.answer_events import TokenUsage


@dataclass
class Totals:
    """What a member has done since the start."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Calls by the kind of their outcome, see `routing.outcomes`; `cancelled` where the caller left."""
    prompt_tokens: int = 0
    response_tokens: int = 0
    cost: float = 0.0


class Member:
    """One model of a pool."""

    def __init__(self, config: MemberConfig, backend: Backend) -> None:
        self.config = config
        self.backend = backend
        self.health = Health(config.budget)
        self.totals = Totals()
        self.running = 0
        """Calls that have not ended."""

    @property
    def id(self) -> str:
        """Its name in the pool."""
        return self.config.id

    def count(self, outcome: Outcome | None) -> None:
        """Count a call by its outcome; None: the caller left."""
        self.totals.outcomes["cancelled" if outcome is None else outcome.kind] += 1

    def charge(self, usage: TokenUsage) -> float | None:
        """Count the tokens of an answer; its cost, None where there are no prices or no counts."""
        prompt, response = usage.prompt_tokens or 0, usage.completion_tokens or 0
        self.totals.prompt_tokens += prompt
        self.totals.response_tokens += response
        if self.config.prices is None or not (prompt or response):
            return None
        cost = self.config.prices.of(prompt, response)
        self.totals.cost += cost
        return cost

    def status(self, now: float) -> dict[str, object]:
        """Its state for people and programs; nothing secret."""
        outcomes = self.totals.outcomes
        failed = sum(count for kind, count in outcomes.items() if kind not in {"ok", "cancelled"})
        rest = self.health.rest_seconds(now)
        reason = None if self.health.outcome is None else self.health.outcome.words
        return {
            "id": self.id,
            "provider": self.config.target.name,
            "model": self.config.model,
            "state": "resting" if rest else "ready" if self.health.available(now) else "probing",
            "resting_seconds": round(rest, 1) if rest else None,
            "reason": reason,
            "running": self.running,
            "ok": outcomes["ok"],
            "failed": failed,
            "outcomes": dict(outcomes),
            "prompt_tokens": self.totals.prompt_tokens,
            "response_tokens": self.totals.response_tokens,
            "cost": round(self.totals.cost, 6) if self.config.prices is not None else None,
        }
