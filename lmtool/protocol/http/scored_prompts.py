"""Logprobs of prompts that were scored lately, so that prompts that begin alike are scored from where they differ."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.types import TokenOutput

MAX_PROMPTS = 64
MAX_ENTRIES = 500_000
"""Alternatives of all tokens of all prompts together, the tokens themselves counted too: about 50 MB."""


Key: TypeAlias = tuple[str, str, int]
"""The model's name, the salt of the requests that may see what is kept, and the number of alternatives a token."""


class ScoredPrompts:
    """What a model said of the tokens of prompts; the one unused longest makes room.

    A token's logprob depends on the tokens before it and on nothing else, so what is kept stays true.
    """

    def __init__(self, max_prompts: int = MAX_PROMPTS, max_entries: int = MAX_ENTRIES) -> None:
        self._kept: OrderedDict[tuple[Key, tuple[int, ...]], tuple[TokenOutput, ...]] = OrderedDict()
        self._max_prompts = max_prompts
        self._max_entries = max_entries
        self._entries = 0

    def put(self, key: Key, ids: tuple[int, ...], outputs: Sequence[TokenOutput]) -> None:
        """Keep the outputs for all tokens of a prompt, the first one included."""
        prompt = (key, ids)
        if prompt in self._kept:
            self._kept.move_to_end(prompt)
            return
        self._kept[prompt] = tuple(outputs)
        self._entries += self._size(prompt)
        while self._kept and (len(self._kept) > self._max_prompts or self._entries > self._max_entries):
            oldest, _ = self._kept.popitem(last=False)
            self._entries -= self._size(oldest)

    def beginning(self, key: Key, ids: tuple[int, ...]) -> list[TokenOutput]:
        """The outputs for as many tokens from the prompt's start as are known."""
        best: tuple[int, tuple[Key, tuple[int, ...]] | None] = (0, None)
        for prompt in self._kept:
            if prompt[0] == key and prompt[1][:1] == ids[:1]:
                best = max(best, (_shared(prompt[1], ids), prompt), key=lambda one: one[0])
        shared, found = best
        if found is None:
            return []
        self._kept.move_to_end(found)
        return list(self._kept[found][:shared])

    @staticmethod
    def _size(prompt: tuple[Key, tuple[int, ...]]) -> int:
        (_, _, top_logprobs), ids = prompt
        return len(ids) * (top_logprobs + 1)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many items two sequences have in common from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare faster than items one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
