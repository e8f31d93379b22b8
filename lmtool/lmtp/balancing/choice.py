"""Which worker takes a request: the least loaded one, or one near that which knows the beginning of the prompt."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.types import Prompt

BLOCK = 16
"""Token ids, or characters by the fourfold, that a remembered piece of a prompt has."""
MOST_BLOCKS = 512
"""Pieces of one prompt that are looked at."""
REMEMBERED = 1 << 16
"""Pieces that are remembered in all; the ones unused longest go first."""
SLACK = 2
"""Streams that a worker may have beyond the least loaded one and still be near; or a quarter more, if that is more."""


class Prefixes:
    """Which worker was last sent which beginning of a prompt. Hashes only: a chance hit costs a detour, no more."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        """limit: pieces remembered."""
        self._limit = limit
        self._owners: OrderedDict[int, int] = OrderedDict()

    def owners(self, prompt: Prompt) -> dict[int, int]:
        """Worker to how many pieces of the prompt's beginning it was the last to get."""
        found: dict[int, int] = {}
        for length, piece in enumerate(pieces(prompt), start=1):
            owner = self._owners.get(piece)
            if owner is None:
                break
            found[owner] = length
        return found

    def remember(self, prompt: Prompt, worker: int) -> None:
        """Note that a worker was sent this prompt."""
        for piece in pieces(prompt):
            self._owners[piece] = worker
            self._owners.move_to_end(piece)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    def forget(self, worker: int) -> None:
        """Note that a worker remembers nothing any more."""
        for piece in [piece for piece, owner in self._owners.items() if owner == worker]:
            del self._owners[piece]


def pieces(prompt: Prompt) -> Iterator[int]:
    """A number for each beginning of the prompt that ends at a whole piece, the shortest first."""
    return islice(_pieces(prompt), MOST_BLOCKS)


def _pieces(prompt: Prompt) -> Iterator[int]:
    units: tuple[object, ...] | str
    if isinstance(prompt, str):
        units, size = prompt, 4 * BLOCK
    elif prompt and not isinstance(prompt[0], int):
        units, size = prompt, 1  # messages: a turn of a conversation is a piece
    else:
        units, size = prompt, BLOCK
    known = 0
    for start in range(0, len(units) - size + 1, size):
        known = hash((known, units[start : start + size]))
        yield known


def choose(loads: Mapping[int, int], owners: Mapping[int, int]) -> int | None:
    """The worker for a request; None where there is none.

    loads: running streams of each worker that is up, the one chosen longest ago first among equals. owners: how much
    of the prompt's beginning each knows, as `Prefixes.owners` tells it.
    """
    if not loads:
        return None
    least = min(loads.values())
    near = [worker for worker, load in loads.items() if load <= least + max(SLACK, least // 4)]
    knowing = max(near, key=lambda worker: owners.get(worker, 0))
    if owners.get(knowing, 0):
        return knowing
    return min(loads, key=loads.__getitem__)
