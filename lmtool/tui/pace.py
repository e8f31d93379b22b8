"""How often the screen is drawn: thirty times a second, less where drawing is slow."""

from __future__ import annotations

SHORTEST, LONGEST = 1 / 30, 1 / 8
"""Seconds between two frames."""
SHARE = 0.2
"""Of the time that drawing may take; the rest belongs to keys and to what comes."""
_MEMORY = 0.9
"""What older frames count for at each new one."""


class Pace:
    """Frames become rare at once when one takes long, and frequent again after a while of quick ones."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """What a frame takes."""

    @property
    def period(self) -> float:
        """Seconds between frames now."""
        return min(LONGEST, max(SHORTEST, self._seconds / SHARE))

    def took(self, seconds: float) -> None:
        """A frame took so long."""
        self._seconds = max(seconds, _MEMORY * self._seconds + (1 - _MEMORY) * seconds)
