"""Blocks of the key-value cache: free ones, and those with cached beginnings of prompts."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Sequence as Many

    Key: TypeAlias = "tuple[Prefix | str, tuple[int, ...]]"


class BlockAllocator:
    """Hands out blocks by number, lowest first, so that a stream alone gets neighbouring ones.

    Block 0 is never handed out: it pads block tables and stays empty.
    """

    def __init__(self, blocks: int) -> None:
        """blocks: how many can be handed out; they are numbered 1 to `blocks`."""
        self.total = blocks
        self._free = list(range(1, blocks + 1))
        self._used: set[int] = set()
        self._touched: set[int] = set()
        """Blocks that were handed out since their memory was last given back."""

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
        self._touched.update(blocks)
        return blocks

    def take_touched(self) -> Iterator[tuple[int, int]]:
        """Consecutive free blocks whose memory was used, and is the caller's to give back: the first, and how many."""
        free = sorted(self._touched - self._used)
        for _, run in groupby(enumerate(free), key=lambda each: each[1] - each[0]):
            blocks = [block for _, block in run]
            self._touched.difference_update(blocks)
            yield blocks[0], len(blocks)

    def release(self, blocks: Iterable[int]) -> None:
        """Take blocks back. A block that was not handed out is a mistake of ours."""
        for block in blocks:
            assert block in self._used, f"block {block} is released but was not handed out"
            self._used.remove(block)
            heapq.heappush(self._free, block)


@dataclass(slots=True, eq=False)
class Prefix:
    """A whole chunk of ids after certain others, and the blocks with its keys and values."""

    key: Key
    """The prefix before it, at a text's start the salt, and its own ids: whole ids are compared, never only hashes."""
    blocks: tuple[int, ...]
    users: int = 0
    """Sequences that use these blocks. While there is one, they stay."""


class PrefixCache:
    """A tree of chunks for each salt. Only whole chunks of prompts are cached, cut where every prompt is cut.

    So a stream that begins with cached chunks continues where one that computes everything would begin its next chunk:
    its bits are the same. Unused chunks are evicted least recently used first, a leaf before its parent.
    """

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self._prefixes: dict[Key, Prefix] = {}
        self._idle: OrderedDict[Prefix, None] = OrderedDict()
        self.blocks = 0
        """Blocks of all cached chunks."""
        self.idle_blocks = 0
        """Blocks that calls of `evict` can free."""

    def reusable(self, prompt_length: int) -> int:
        """Number of positions of a prompt that may come from the cache: whole chunks, and never the last position.

        What the last position predicts is needed, and only computing it tells.
        """
        return max(prompt_length - 1, 0) // self.chunk_tokens * self.chunk_tokens

    def match(self, tokens: Many[int], positions: int, salt: str = "") -> list[Prefix]:
        """The longest cached beginning of `tokens` within its first `positions`, chunk by chunk; none is acquired.

        salt: of the tree to look in.
        """
        matches: list[Prefix] = []
        for start in range(0, positions, self.chunk_tokens):
            chunk = tuple(tokens[start : start + self.chunk_tokens])
            prefix = self._prefixes.get((matches[-1] if matches else salt, chunk))
            if prefix is None:
                break
            matches.append(prefix)
        return matches

    def acquire(self, prefixes: Iterable[Prefix]) -> None:
        """Count one more sequence that uses these."""
        for prefix in prefixes:
            if not prefix.users:
                del self._idle[prefix]
                self.idle_blocks -= len(prefix.blocks)
            prefix.users += 1

    def release(self, prefixes: Many[Prefix]) -> None:
        """Count one sequence less that uses these; they stay until their blocks are needed."""
        for prefix in reversed(prefixes):
            prefix.users -= 1
            assert prefix.users >= 0
            if not prefix.users:
                self._idle[prefix] = None
                self.idle_blocks += len(prefix.blocks)

    def add(self, parent: Prefix | str, chunk: Many[int], blocks: Many[int]) -> Prefix:
        """Cache a computed chunk, acquired by the sequence that computed it. parent: at a text's start the salt.

        Where another sequence computed the same chunk first, that one is returned, and `blocks` stay the caller's.
        """
        key = (parent, tuple(chunk))
        prefix = self._prefixes.get(key)
        if prefix is None:
            self._prefixes[key] = prefix = Prefix(key, tuple(blocks), users=1)
            self.blocks += len(prefix.blocks)
        else:
            self.acquire([prefix])
        return prefix

    def discard(self, prefixes: Iterable[Prefix]) -> None:
        """Match these no more, nor what follows them; they are evicted like others."""
        for prefix in prefixes:
            if self._prefixes.get(prefix.key) is prefix:
                del self._prefixes[prefix.key]

    def evict(self) -> tuple[int, ...]:
        """Drop the unused chunk that was used least recently; its blocks are the caller's."""
        prefix, _ = self._idle.popitem(last=False)
        self.discard([prefix])
        self.blocks -= len(prefix.blocks)
        self.idle_blocks -= len(prefix.blocks)
        return prefix.blocks
