"""How a call of a member ended, as far as health and fallback go by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

OutcomeKind: TypeAlias = Literal[
    "ok", "rate_limit", "key_refused", "fault", "unreachable", "refused", "context_too_long"
]
"""What becomes of the member, and of the request:

`ok`: answered. `rate_limit` (429): rests until its `retry_after`. `key_refused` (401, 403): rests, doubling. `fault`
(5xx, timeout, reset, malformed, empty): costs its error budget one token. `unreachable` (a health check that failed):
rests, doubling. `refused` and `context_too_long` (400, 404, 413, 422): the request's own; the member is as well as
before, and is not asked again.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one call."""

    kind: OutcomeKind
    reason: str = ""
    """In our words, such as `timeout` or `status 503`; never the member's."""
    retry_after: float | None = None
    """Seconds that a member with `rate_limit` wants to be left alone; None where it did not say."""
    overflow: tuple[int, int] = field(default=(0, 0), compare=False)
    """Of `context_too_long`: tokens of the prompt, and the most that there may be; 0 where the member did not say."""

    @property
    def about_request(self) -> bool:
        """True if the member would answer the same request in the same way again."""
        return self.kind in {"refused", "context_too_long"}

    @property
    def words(self) -> str:
        """For people."""
        return self.reason or self.kind.replace("_", " ")


OK = Outcome("ok")
OVERLOADED = Outcome("rate_limit", "overloaded", 1.0)
"""A server of ours that takes nothing more now: its queue is full, or it shuts down."""
