"""Random numbers of many rows at once: those of `lmtool.core.logprobs.uniform`, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lmtool.core.logprobs.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MANY = 16
"""Pairs from which on making them together is faster."""

_MASK = (1 << 64) - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """[n] in [0, 1): `uniform` of each pair, to the bit."""
    if len(seeds) < _MANY:
        return np.array([uniform(*pair) for pair in zip(seeds, positions, strict=True)], np.float64)
    own = _mix(np.array([seed & _MASK for seed in seeds], np.uint64)) + np.array(positions, np.uint64) + np.uint64(1)
    return (_mix(own) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)  # arrays of such numbers wrap around in silence
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
