"""The random numbers of a stream's samples: they depend on its seed and the token's position alone."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments.

    seed: of the stream. position: index of the token to be sampled, counted from the prompt's first. Two rounds of
    the SplitMix64 finalizer (Steele, Lea and Flood, OOPSLA 2014), 53 bits of it.
    """
    return (_mix(_mix(seed & _MASK) + position + 1) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
