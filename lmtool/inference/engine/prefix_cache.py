"""Blocks of the key-value cache: free ones, those of each sequence, and cached beginnings of prompts."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Sequence as Many

    from lmtool.inference.engine.plan import Limits, Sequence

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
    """A whole chunk of ids behind certain others, and the blocks with its keys and values."""

    key: Key
    """The prefix before it, at a text's start the salt, and its own ids: whole ids are compared, never only hashes."""
    blocks: tuple[int, ...]
    users: int = 0
    """Sequences that use these blocks. While there is one, they stay."""


class PrefixCache:
    """A tree of chunks for each salt. Only whole chunks of prompts are cached, cut where every prompt is cut.

    So a stream that begins with cached chunks goes on where one that computes everything would begin its next chunk:
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
        """How many positions of a prompt may come from the cache: whole chunks, and never the last position.

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


class BlockUsage(NamedTuple):
    """Blocks of the key-value cache."""

    total: int
    used: int
    """By sequences, those in the prefix cache that one of them uses among these."""
    cached: int
    """In the prefix cache, whether a sequence uses them or not."""


class SequenceBlocks:
    """Gives sequences blocks and takes them back. Who gets them, and who gives way, the scheduler decides."""

    def __init__(self, limits: Limits, allocator: BlockAllocator, cache: PrefixCache | None) -> None:
        """cache: of computed chunks; None: there is none."""
        self.allocator = allocator
        self.cache = cache
        self._chunk_tokens, self._block_tokens = limits.chunk_tokens, limits.block_tokens
        self._cache_generated = limits.cache_generated

    @property
    def free(self) -> int:
        """Blocks that no sequence uses."""
        return self.allocator.free + (0 if self.cache is None else self.cache.idle_blocks)

    @property
    def usage(self) -> BlockUsage:
        """Who has the blocks now. Safe from any thread."""
        cached, idle = (0, 0) if self.cache is None else (self.cache.blocks, self.cache.idle_blocks)
        return BlockUsage(self.allocator.total, self.allocator.total - self.allocator.free - idle, cached)

    def fits(self, positions: int) -> bool:
        """Whether a sequence of this many stored positions can be computed at all, at least alone."""
        return -(-positions // self._block_tokens) <= self.allocator.total

    def missing(self, sequence: Sequence, positions: int) -> int:
        """Blocks that a sequence lacks for its first `positions`; 0 or less where it has them."""
        return -(-positions // self._block_tokens) - len(sequence.blocks)

    def extend(self, sequence: Sequence, count: int) -> list[int]:
        """Give a sequence this many more blocks, at most `free`; unused chunks of the prefix cache are dropped."""
        while count > self.allocator.free:
            assert self.cache is not None
            self.allocator.release(self.cache.evict())
        blocks = self.allocator.allocate(count)
        assert blocks is not None
        sequence.blocks.extend(blocks)
        return blocks

    def freed_by(self, sequences: Many[Sequence]) -> int:
        """Blocks that releasing all of these would free."""
        users = Counter(prefix for sequence in sequences for prefix in sequence.prefixes)
        shared = sum(len(prefix.blocks) for prefix, count in users.items() if count == prefix.users)
        return shared + sum(len(sequence.own_blocks) for sequence in sequences)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back; what was computed in them is to be computed again."""
        self.allocator.release(sequence.own_blocks)
        if self.cache is not None:
            self.cache.release(sequence.prefixes)
        sequence.blocks, sequence.prefixes, sequence.draft = [], [], []
        sequence.recompute_to, sequence.computed = max(sequence.recompute_to, sequence.computed), 0

    def chunked_length(self, sequence: Sequence) -> int:
        """Positions of a sequence that are computed in chunks, and cached."""
        return sequence.target if self._cache_generated else sequence.chunked_length

    def reusable(self, sequence: Sequence) -> int:
        """How many positions of its prompt may come from the prefix cache, see `PrefixCache.reusable`."""
        return 0 if self.cache is None else self.cache.reusable(sequence.prompt_length)

    def cached(self, sequence: Sequence) -> list[Prefix]:
        """Chunks of a sequence that are in the prefix cache."""
        if self.cache is None:
            return []
        return self.cache.match(sequence.tokens, self.reusable(sequence), sequence.cache_salt)

    def begin_with(self, sequence: Sequence, cached: list[Prefix]) -> None:
        """Let a sequence that has no blocks begin with these chunks."""
        if self.cache is None:
            return
        self.cache.acquire(cached)
        sequence.prefixes = list(cached)
        sequence.blocks = [block for prefix in cached for block in prefix.blocks]
        sequence.computed = len(sequence.blocks) * self._block_tokens

    def cache_chunks(self, sequence: Sequence) -> None:
        """Add the chunks that a sequence has just completed to the prefix cache."""
        if self.cache is None or not sequence.blocks:
            return
        size = self._chunk_tokens
        blocks, whole = size // self._block_tokens, min(sequence.computed, self.chunked_length(sequence)) // size
        for n in range(len(sequence.prefixes), whole):
            own = sequence.blocks[n * blocks : (n + 1) * blocks]
            parent = sequence.prefixes[-1] if sequence.prefixes else sequence.cache_salt
            prefix = self.cache.add(parent, sequence.tokens[n * size : (n + 1) * size], own)
            if prefix.blocks != tuple(own):  # another sequence computed the same bits first
                sequence.blocks[n * blocks : (n + 1) * blocks] = prefix.blocks
                self.allocator.release(own)
            sequence.prefixes.append(prefix)

    def discard(self, sequence: Sequence) -> None:
        """Let no other sequence begin with what was computed of this one."""
        if self.cache is not None:
            self.cache.discard(sequence.prefixes)

    def forget(self, keep_blocks: int) -> Iterator[tuple[int, int]]:
        """Drop cached chunks that nobody uses, the least recently used first, until they hold at most `keep_blocks`.

        Returns runs of blocks whose memory nobody needs then, see `BlockAllocator.take_touched`.
        """
        while self.cache is not None and self.cache.idle_blocks > keep_blocks:
            self.allocator.release(self.cache.evict())
        return self.allocator.take_touched()
