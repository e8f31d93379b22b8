"""How well a few typed words fit a text: for lists that are narrowed by typing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT, _START, _INSIDE, _SCATTERED = 8.0, 4.0, 2.0, 1.0
_SMALLEST_PART = 3
"""Characters from which on a part inside a word counts: shorter ones are everywhere."""


def score(query: str, texts: Sequence[str]) -> float:
    """How well all words of a query fit, 0 where one fits nowhere.

    texts: the most important first; the weight halves from each to the next. Only the first one, a name, is also
    searched for the letters of a word in order with others between, such as `lklst` in `least likely`.
    """
    words = query.lower().split()
    total = 0.0
    for word in words:
        best = max((_fit(word, text.lower()) / 2**i for i, text in enumerate(texts)), default=0.0)
        if not best and texts:
            best = _scattered(word, texts[0].lower())
        if not best:
            return 0.0
        total += best
    return total


def _fit(word: str, text: str) -> float:
    """How a word occurs in a text: as a whole word, at the start of one, inside one."""
    if word not in text:
        return 0.0
    if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
        return _EXACT
    if re.search(rf"(?<!\w){re.escape(word)}", text):
        return _START
    return _INSIDE if len(word) >= _SMALLEST_PART else 0.0


def _scattered(word: str, name: str) -> float:
    """Of 1, how close together the letters of a word stand in a name; 0 where they are not all there in order."""
    start, place = -1, -1
    for letter in word:
        place = name.find(letter, place + 1)
        if place < 0:
            return 0.0
        start = place if start < 0 else start
    return _SCATTERED * len(word) / (place - start + 1)
