"""Logprobs of prompts that were scored lately, so that prompts that begin alike are scored from where they differ."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.types import TokenOutput

MOST_PROMPTS = 64
MOST_ENTRIES = 2_000_000
"""Alternatives of all tokens of all prompts together, the tokens themselves counted too: about 200 MB."""


class ScoredPrompts:
    """What a model said of the tokens of prompts; the one unused longest makes room.

    A token's logprob depends on the tokens before it and on nothing else, so what is kept stays true.
    """

    def __init__(self, most_prompts: int = MOST_PROMPTS, most_entries: int = MOST_ENTRIES) -> None:
        self._kept: OrderedDict[tuple[str, int, tuple[int, ...]], tuple[TokenOutput, ...]] = OrderedDict()
        self._most_prompts = most_prompts
        self._most_entries = most_entries
        self._entries = 0

    def put(self, model: str, wanted: int, ids: tuple[int, ...], outputs: Sequence[TokenOutput]) -> None:
        """Keep the outputs for all tokens of a prompt, the first one included. wanted: alternatives beside each."""
        key = (model, wanted, ids)
        if key in self._kept:
            self._kept.move_to_end(key)
            return
        self._kept[key] = tuple(outputs)
        self._entries += self._size(key)
        while self._kept and (len(self._kept) > self._most_prompts or self._entries > self._most_entries):
            oldest, _ = self._kept.popitem(last=False)
            self._entries -= self._size(oldest)

    def beginning(self, model: str, wanted: int, ids: tuple[int, ...]) -> list[TokenOutput]:
        """The outputs for as many tokens from the prompt's start as are known."""
        best: tuple[int, tuple[str, int, tuple[int, ...]] | None] = (0, None)
        for key in self._kept:
            if key[:2] == (model, wanted) and key[2][:1] == ids[:1]:
                best = max(best, (_shared(key[2], ids), key), key=lambda one: one[0])
        shared, found = best
        if found is None:
            return []
        self._kept.move_to_end(found)
        return list(self._kept[found][:shared])

    @staticmethod
    def _size(key: tuple[str, int, tuple[int, ...]]) -> int:
        return len(key[2]) * (key[1] + 1)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many items two sequences have in common from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare faster than items one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
