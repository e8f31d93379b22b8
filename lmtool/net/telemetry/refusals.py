"""Requests that are refused at the door: counted, and logged without what they say, a line a second and reason."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.metrics import MetricFamily, labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.net.access.policy import Reason, Refusal

INTERVAL = 1.0
"""Seconds between two lines for one reason: strangers can fill no disk."""


@dataclass(frozen=True, slots=True)
class RefusalLog:
    """Requests that the door has refused for one reason."""

    reason: Reason
    status: int
    """That of HTTP, whatever the protocol."""
    protocol: str
    """Of the last of them: `http`, `websocket` or `grpc`."""
    address: str | None
    """From where that came; None for a Unix socket."""
    key: str | None
    """The name of its key, where that is above a limit."""
    count: int
    """All since the line before, this one included."""


class Refusals:
    """Of one server. Belongs to one event loop."""

    def __init__(self, log: Callable[[RefusalLog], None], clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, never going back."""
        self._log = log
        self._clock = clock
        self._totals: Counter[Reason] = Counter()
        self._logged: dict[Reason, tuple[float, int]] = {}
        """When there was a line last, and how many had been refused by then."""

    def note(self, refusal: Refusal, protocol: str, address: str | None) -> None:
        """A request is refused."""
        reason, now = refusal.reason, self._clock()
        self._totals[reason] += 1
        when, before = self._logged.get(reason, (None, 0))
        if when is None or now - when >= INTERVAL:
            total = self._totals[reason]
            self._logged[reason] = now, total
            key = refusal.key or None
            self._log(RefusalLog(reason, refusal.status, protocol, address, key, total - before))

    def metrics(self) -> MetricFamily:
        """How many there were."""
        samples = [(labels(reason=reason), count) for reason, count in sorted(self._totals.items())]
        return MetricFamily("requests_refused_total", "counter", "Requests refused at the door.", samples)
