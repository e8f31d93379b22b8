"""How often the screen is drawn: thirty times a second, less where drawing is slow."""

from __future__ import annotations

PERIODS = (1 / 30, 1 / 15, 1 / 8)
"""Seconds between two frames."""
SLOW = 0.025
"""Seconds that a frame may take."""
FAST = 0.010
"""Seconds under which a frame is quick enough to draw more of them."""
_SLOW_ROW = 3
_FAST_ROW = 60


class Pace:
    """Goes down at once when frames take long, and up again after a while of quick ones."""

    def __init__(self) -> None:
        self._step = 0
        self._row = 0

    @property
    def period(self) -> float:
        """Seconds between frames now."""
        return PERIODS[self._step]

    def took(self, seconds: float) -> None:
        """A frame took so long."""
        if seconds > SLOW:
            self._row = max(0, self._row) + 1
        elif seconds < FAST:
            self._row = min(0, self._row) - 1
        if self._row >= _SLOW_ROW:
            self._step, self._row = min(len(PERIODS) - 1, self._step + 1), 0
        elif self._row <= -_FAST_ROW:
            self._step, self._row = max(0, self._step - 1), 0
