"""Numbers and times, as short as a person can read them."""

from __future__ import annotations

import math


def figure(number: float | None, nothing: str = "-") -> str:
    """Three digits or so; `nothing` for None."""
    if number is None:
        return nothing
    if math.isinf(number):
        return "inf"
    if abs(number) >= 1e6:
        return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{number:.1f}" if abs(number) < 99.95 else f"{number:.0f}"


def milliseconds(seconds: float | None, nothing: str = "-") -> str:
    """`9.1ms`, `340ms`, `12.3s`."""
    if seconds is None:
        return nothing
    return f"{figure(seconds * 1000)}ms" if seconds < 9.9995 else f"{seconds:.1f}s"


def clock(seconds: float) -> str:
    """`00:14.2`; with hours where there are some."""
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    rest = math.floor(rest * 10) / 10
    return (f"{hours}:" if hours else "") + f"{minutes:02}:{rest:04.1f}"


def size(size_bytes: int) -> str:
    """`312 B`, `1.2 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    number, unit = size_bytes / 1000, 0
    while number >= 999.95 and unit < 3:
        number, unit = number / 1000, unit + 1
    return f"{figure(number)} {'kMGT'[unit]}B"


def count(number: int) -> str:
    """A whole number with separators."""
    return f"{number:,}"
