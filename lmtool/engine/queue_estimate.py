"""How long a waiting sequence will wait, by how fast others were admitted while some waited."""

from __future__ import annotations

ADMISSIONS_KEPT = 32
"""Older ones weigh half as much each time that so many have been added."""


class QueueEstimate:
    """Mean time between two admissions, measured while sequences wait.

    `learn` belongs to one thread; `seconds` may be called from any.
    """

    def __init__(self) -> None:
        self._admitted = 0
        """By the last call of `learn`."""
        self._since: float | None = None
        """When that was, if sequences waited then."""
        self._measured = (0.0, 0.0)
        """Seconds in which sequences waited, and the admissions in them."""

    def learn(self, admitted: int, waiting: int, now: float) -> None:
        """Take note of a plan. admitted: sequences so far. waiting: those left in the queue. now: in seconds."""
        if self._since is not None:
            seconds, count = self._measured
            seconds, count = seconds + now - self._since, count + admitted - self._admitted
            halved = 0.5 if count >= 2 * ADMISSIONS_KEPT else 1.0
            self._measured = (seconds * halved, count * halved)
        self._admitted, self._since = admitted, now if waiting else None

    def seconds(self, place: int) -> float | None:
        """Until the sequence at this place, from 1, is admitted; None where none that waited has been admitted yet."""
        seconds, count = self._measured
        return place * seconds / count if count else None
