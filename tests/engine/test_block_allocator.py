"""Blocks are handed out once, come back, and are never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.engine.block_allocator import BlockAllocator


def test_lowest_first():
    """The lowest free blocks go first, from 1 on: block 0 pads tables."""
    allocator = BlockAllocator(8)
    first = allocator.allocate(3)
    assert first == [1, 2, 3]
    allocator.release([2])
    assert allocator.allocate(2) == [2, 4]


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
