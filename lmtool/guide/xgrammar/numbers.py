"""Numbers of a range, digit by digit, in xgrammar's notation."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING

from lmtool.guide.xgrammar import notation

if TYPE_CHECKING:
    from fractions import Fraction

_DIGIT = "[0-9]"
INTEGER = '("-")? ("0" | [1-9] [0-9]*)'
NUMBER = f'{INTEGER} ("." [0-9]+)? ([eE] ("+" | "-")? [0-9]{{1,2}})?'
"""Exponents have two digits at most: what is larger than a float becomes infinite where it is read."""


def integers(least: int | None, most: int | None) -> str | None:
    """Return the expression of the whole numbers from `least` to `most`; None where there is none."""
    return _ranged(least, most, 0)


def decimals(least: Fraction | None, most: Fraction | None, places: int) -> str | None:
    """Return the expression of the numbers from `least` to `most` with so many digits behind the point.

    None where there is none; both ends belong to it.
    """
    scale = 10**places
    low = None if least is None else ceil(least * scale)
    high = None if most is None else floor(most * scale)
    return _ranged(low, high, places)


def _ranged(least: int | None, most: int | None, places: int) -> str | None:
    """The expression of a range of integers, with a point before the last `places` digits."""
    ways = []
    if most is None or most >= 0:
        ways += _magnitudes(max(least or 0, 0), most, places)
    if least is None or least < 0:
        low = 1 if most is None or most >= 0 else -most
        below = _magnitudes(low, None if least is None else -least, places)
        ways += [f'"-" {way}' for way in below]
    return notation.choice(ways)


def _magnitudes(least: int, most: int | None, places: int) -> list[str]:
    """Expressions of the integers from `least` to `most`, neither below 0, each with one number of digits."""
    if most is not None and least > most:
        return []
    ways, shortest = [], places + 1
    first = max(len(str(least)), shortest)
    last = first if most is None else max(len(str(most)), shortest)
    for length in range(first, last + 1):
        low = max(least, 10 ** (length - 1) if length > shortest else 0)
        high = 10**length - 1 if most is None else min(most, 10**length - 1)
        ways += [_pointed(digits, places) for digits in _same_length(f"{low:0{length}}", f"{high:0{length}}")]
    if most is None:
        ways.append(_pointed(["[1-9]", *[_DIGIT] * last], places, more=True))
    return ways


def _same_length(low: str, high: str) -> list[list[str]]:
    """Lists of digits that together are the numbers between two of the same length."""
    if not low:
        return [[]]
    if low[0] == high[0]:
        return [[_digits(low[0], low[0]), *rest] for rest in _same_length(low[1:], high[1:])]
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return [[_digits(low[0], high[0]), *[_DIGIT] * (len(low) - 1)]]
    start, end = int(low[0]), int(high[0])
    ways = [[_digits(low[0], low[0]), *rest] for rest in _same_length(low[1:], "9" * (len(low) - 1))]
    if start + 1 < end:
        ways.append([_digits(str(start + 1), str(end - 1)), *[_DIGIT] * (len(low) - 1)])
    ways += [[_digits(high[0], high[0]), *rest] for rest in _same_length("0" * (len(low) - 1), high[1:])]
    return ways


def _digits(first: str, last: str) -> str:
    return f'"{first}"' if first == last else f"[{first}-{last}]"


def _pointed(digits: list[str], places: int, *, more: bool = False) -> str:
    """Digits as an expression. more: any further ones may follow those before the point."""
    before, behind = digits[: len(digits) - places], digits[len(digits) - places :]
    further = ["[0-9]*"] if more else []
    return " ".join([*before, *further, *(['"."', *behind] if places else [])])
