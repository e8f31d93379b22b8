"""Medians, percentiles and spreads of a few measured numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a number lies over several rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median, least and greatest; None of nothing."""
    if not values:
        return None
    return Spread(percentile(values, 50), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of them lie, interpolated between neighbours. Raises ValueError for nothing."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
