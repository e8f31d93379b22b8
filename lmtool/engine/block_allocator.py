"""Which blocks of the key-value cache are free."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockAllocator:
    """Hands out blocks by number, lowest first, so that a stream alone gets neighbouring ones.

    Block 0 is never handed out: it pads block tables and stays empty.
    """

    def __init__(self, blocks: int) -> None:
        """blocks: how many can be handed out; they are numbered 1 to `blocks`."""
        self.total = blocks
        self._free = list(range(1, blocks + 1))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and no change) when fewer are free."""
        if count > len(self._free):
            return None
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        self._used.update(blocks)
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Take blocks back. A block that was not handed out is a mistake of ours."""
        for block in blocks:
            assert block in self._used, f"block {block} is released but was not handed out"
            self._used.remove(block)
            heapq.heappush(self._free, block)
