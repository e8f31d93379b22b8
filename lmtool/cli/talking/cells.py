"""How many terminal columns a text takes, and how it breaks into lines of so many."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_ZERO_WIDTH = {"Mn", "Me", "Cf"}
_CHUNK = re.compile(r"\n|[^\S\n]+|[^\s]+")


def width(text: str) -> int:
    """Columns of a text without line feeds; wide characters take two, combining ones none, a tab one."""
    return len(text) if text.isascii() else sum(_cell(c) for c in text)


@lru_cache(maxsize=4096)
def _cell(character: str) -> int:
    if unicodedata.category(character) in _ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def fit(text: str, columns: int) -> str:
    """Return as much of the text's beginning as these columns hold; a wide character is never cut in half."""
    if text.isascii():
        return text[:columns]
    used = 0
    for i, character in enumerate(text):
        used += _cell(character)
        if used > columns:
            return text[:i]
    return text


def shorten(text: str, columns: int) -> str:
    """Return the text, or its beginning and `…`, in at most this many columns."""
    return text if width(text) <= columns else fit(text, max(0, columns - 1)) + "…"[:columns]


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return the text with spaces to this many columns, `right`: before it."""
    spaces = " " * (columns - width(text))
    return spaces + text if right else text + spaces


def chunks(text: str) -> list[str]:
    """Split into line feeds, runs of other white space, and words; joined, they are the text."""
    return _CHUNK.findall(text)
