"""Which blocks of the key-value cache each sequence has, and which of its chunks others may begin with."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Many

    from lmtool.inference.engine.plan import Limits
    from lmtool.inference.engine.prefix_cache import BlockAllocator, Prefix, PrefixCache
    from lmtool.inference.engine.sequence import Sequence


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
