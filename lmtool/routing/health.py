"""Whether a member answers, as its checks and losses say, and how long to wait before the next check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.errors import LmtoolError

MAX_BACKOFF = 30
"""Check intervals, the longest pause between two checks that fail."""


@dataclass(slots=True)
class Health:
    """The state of one member: up from a check that succeeds to a loss or a check that fails."""

    up: bool = False
    ever_up: bool = False
    """Whether a check has ever succeeded."""
    error: LmtoolError | None = None
    """Why it is not up; None while it is, and before the first check."""
    failed_checks: int = 0
    """Checks that failed since it was up."""

    def succeed(self) -> None:
        """Record a check that succeeded."""
        self.up, self.ever_up, self.error, self.failed_checks = True, True, None, 0

    def fail(self, error: LmtoolError) -> None:
        """Record a check that failed."""
        self.failed_checks += 1
        self.lose(error)

    def lose(self, error: LmtoolError) -> None:
        """Record that its connection was lost; it may be checked again at once."""
        self.up, self.error = False, error

    def check_delay(self, interval: float) -> float:
        """Seconds until the next check, at most: doubled with each failure in a row. interval: seconds while it is up.

        After a loss without a failed check the caller may check at once.
        """
        doublings = min(max(0, self.failed_checks - 1), MAX_BACKOFF)  # a worker may be down for weeks
        return interval * min(1 << doublings, MAX_BACKOFF)
