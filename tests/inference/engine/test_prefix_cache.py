"""Blocks of the key-value cache: who has which, and which chunks are kept for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from tests.inference.engine.scheduling import cached_blocks

TEXT = list(range(100))


def filled(*, chunks=3):
    """A cache of chunks of 4 ids with the beginning of `TEXT`, held by one sequence."""
    cache, held = PrefixCache(4), []
    for n in range(chunks):
        parent = held[-1] if held else ""
        held.append(cache.add(parent, TEXT[4 * n : 4 * n + 4], [2 * n + 1, 2 * n + 2]))
    return cache, held


def test_the_longest_beginning():
    """Chunks match from the start as far as the ids are the same; a chunk counts only behind its own beginning."""
    cache, held = filled()
    assert cache.match(TEXT, 100) == held
    assert cache.match(TEXT, 8) == held[:2]
    assert cache.match([*TEXT[:7], 0, *TEXT[8:]], 100) == held[:1]
    assert cache.match(TEXT[4:], 100) == []


def test_a_salt_is_a_tree_of_its_own():
    """The same chunk under another salt has blocks of its own, and each is found under its own salt alone."""
    cache, held = filled(chunks=1)
    salted = cache.add("mine", TEXT[:4], [8, 9])
    assert cache.match(TEXT, 100, "mine") == [salted]
    assert cache.match(TEXT, 100) == held
    assert cache.match(TEXT, 100, "yours") == []


def test_the_last_position_is_always_computed():
    """What a prompt's last position predicts is not kept: at least that one position is left over."""
    assert [PrefixCache(4).reusable(length) for length in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


def test_the_first_one_stays():
    """A chunk that is there already is held once more; the newcomer keeps its own blocks."""
    cache, held = filled(chunks=1)
    again = cache.add("", TEXT[:4], [8, 9])
    assert again is held[0]
    assert (again.blocks, again.users) == ((1, 2), 2)


def test_what_is_used_stays():
    """Only chunks without a user can be given up: an end before its beginning, the unused longest first."""
    cache, held = filled()
    other = cache.add("", [7, 7, 7, 7], [8, 9])
    assert (cache.idle_blocks, cache.blocks) == (0, 8)
    cache.release(held)
    cache.release([other])
    assert cache.idle_blocks == 8
    cache.acquire(held[:1])
    assert [cache.evict(), cache.evict(), cache.evict()] == [(5, 6), (3, 4), (8, 9)]
    assert (cache.idle_blocks, cache.blocks) == (0, 2)
    assert cache.match(TEXT, 100) == held[:1]
    assert cached_blocks(cache) == 2


def test_lowest_first():
    """The lowest free blocks go first, from 1 on: block 0 pads tables."""
    allocator = BlockAllocator(8)
    first = allocator.allocate(3)
    assert first == [1, 2, 3]
    allocator.release([2])
    assert allocator.allocate(2) == [2, 4]


def test_memory_that_was_touched():
    """Free blocks that were handed out are named once, in runs; those in use, and those never touched, are not."""
    allocator = BlockAllocator(9)
    blocks = allocator.allocate(7)
    allocator.release([block for block in blocks if block != 3])
    assert list(allocator.take_touched()) == [(1, 2), (4, 4)]
    assert list(allocator.take_touched()) == []
    assert allocator.allocate(1) == [1]
    allocator.release([1, 3])
    assert next(allocator.take_touched()) == (1, 1)
    assert list(allocator.take_touched()) == [(3, 1)], "those that were not taken are still there"


def test_refuses_when_full():
    """Asking for more than is free changes nothing."""
    allocator = BlockAllocator(2)
    assert allocator.allocate(3) is None
    assert allocator.free == 2


def test_released_twice():
    """Releasing a block that is not handed out is a mistake of ours."""
    allocator = BlockAllocator(2)
    with pytest.raises(AssertionError, match="block 1"):
        allocator.release([1])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_never_lost(steps):
    """Whatever is taken and given back, each block is free or held by exactly one holder."""
    allocator, held = BlockAllocator(16), []
    for take, number in steps:
        if take:
            blocks = allocator.allocate(number)
            held += [] if blocks is None else [blocks]
        elif held:
            allocator.release(held.pop(number % len(held)))
        used = [block for blocks in held for block in blocks]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(1, 17))
        assert allocator.free + len(used) == allocator.total
