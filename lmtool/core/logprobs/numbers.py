"""How numbers are written for people: probabilities, figures, times, sizes. Each format is known here only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def format_probability(p: float) -> str:
    """`.326`, `1.00`; below a thousandth as `2e-5`."""
    if p >= 0.9995:
        return "1.00"
    if p < 0.0009995:
        return "0" if p == 0 else f"{p:.0e}".replace("e-0", "e-")
    return f"{p:.3f}"[1:]


def short(number: float) -> str:
    """A number without the zero in front of its point."""
    text = f"{number:g}"
    return text[1:] if text.startswith("0.") else text


def figure(number: float | None, nothing: str = "-") -> str:
    """Three digits or so; `nothing` for None."""
    if number is None:
        return nothing
    if math.isinf(number):
        return "inf"
    if abs(number) >= 1e6:
        return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{number:.1f}" if abs(number) < 99.95 else f"{number:.0f}"


def two_decimals(number: float | None, nothing: str = "-") -> str:
    """`3.06`; three digits from a thousand on; `nothing` for None."""
    if number is None:
        return nothing
    return f"{number:.2f}" if number < 1000 else f"{number:.3g}"


def milliseconds(seconds: float | None, nothing: str = "-") -> str:
    """`9.1ms`, `340ms`, `12.3s`: for columns."""
    if seconds is None:
        return nothing
    return f"{figure(seconds * 1000)}ms" if seconds < 9.9995 else f"{seconds:.1f}s"


def duration(seconds: float) -> str:
    """`9.1 ms`, `1234 ms`: for sentences and logs, where there is room."""
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"


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


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value that at least this share of all does not exceed (nearest rank). values: not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
