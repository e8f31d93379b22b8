"""Sets of characters, as ranges of code points."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Characters: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of code points, both ends in them: sorted, apart, none of them a surrogate."""

_SURROGATES = (0xD800, 0xDFFF)
_LAST = 0x10FFFF


def of(*ranges: tuple[int, int]) -> Characters:
    """Return the set of these ranges."""
    parts: list[tuple[int, int]] = []
    for first, last in sorted(_spoken(ranges)):
        if parts and first <= parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], max(parts[-1][1], last))
        else:
            parts.append((first, last))
    return tuple(parts)


def of_text(text: str) -> Characters:
    """Return the set of a text's characters."""
    return of(*((ord(character), ord(character)) for character in text))


def union(*sets: Characters) -> Characters:
    """Return what is in one of the sets at least."""
    return of(*(part for one in sets for part in one))


def complement(characters: Characters) -> Characters:
    """Return all other characters."""
    parts, start = [], 0
    for first, last in characters:
        parts.append((start, first - 1))
        start = last + 1
    parts.append((start, _LAST))
    return of(*(part for part in parts if part[0] <= part[1]))


def without(characters: Characters, others: Characters) -> Characters:
    """Return what is in the first set and not in the second."""
    return complement(union(complement(characters), others))


def _spoken(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """The ranges without surrogates, which no text has."""
    for first, last in ranges:
        if first < _SURROGATES[0]:
            yield first, min(last, _SURROGATES[0] - 1)
        if last > _SURROGATES[1]:
            yield max(first, _SURROGATES[1] + 1), last


ALL = of((0, _LAST))
DIGITS = of((48, 57))
WORD = of((48, 57), (65, 90), (95, 95), (97, 122))
SPACES = of_text(" \t\n\r\f\v")
LINE = complement(of_text("\n\r\x85\u2028\u2029"))
"""What a dot stands for under every dialect."""

_BEYOND_ASCII = of((0x80, _LAST))
NO_DIGIT = complement(union(DIGITS, of((0x250, _LAST))))
"""What no dialect takes for a digit: the first decimal digit that is not ASCII is U+0660."""
NO_WORD = complement(union(WORD, _BEYOND_ASCII))
NO_SPACE = complement(
    union(SPACES, of((0x1C, 0x1F)), of_text("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), of((0x2000, 0x200A)))
)
"""What no dialect takes for a blank."""
