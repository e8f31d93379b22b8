"""Tiles of the attention kernels: what fits into shared memory, for every dtype, head size and GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from lmtool.inference.engine.cuda.kernels.tiles import (
    HOPPER_SHARED,
    Tiles,
    decode_buffers,
    decode_tiles,
    fastest,
    prefill_buffers,
    prefill_tiles,
    shared_memory,
)

SHARED = (99 * 1024, 163 * 1024, HOPPER_SHARED)
"""Of a block, by compute capability: 8.6 and 8.9, 8.0, 9.0 and later."""
EVERY = list(itertools.product((torch.float32, torch.float16, torch.bfloat16), (8, 64, 80, 128, 256, 512), SHARED))
CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "size", "shared"), EVERY)
def test_they_fit(dtype, size, shared):
    """No choice needs more shared memory than a block may use, and each cuts a tile of 64 queries evenly."""
    prefill = prefill_tiles(dtype, size, shared)
    assert prefill.shared(dtype.itemsize, size, prefill_buffers(prefill)) <= shared
    assert 64 % prefill.queries == 0
    for rows in (1, 7, 16, 71) if size <= 128 else (1, 7, 16):
        for tiles in decode_tiles(dtype, size, rows, shared):
            assert tiles.queries >= max(16, rows)
            assert tiles.shared(dtype.itemsize, size, decode_buffers(tiles)) <= shared


def test_large_tiles_where_there_is_room():
    """Usual heads have tiles of 64 keys and 64 queries; on smaller GPUs, larger heads and in float32 they shrink."""
    assert prefill_tiles(torch.bfloat16, 128, HOPPER_SHARED) == Tiles(queries=64, keys=64, warps=4, stages=3)
    assert prefill_tiles(torch.bfloat16, 256, SHARED[0]).keys < prefill_tiles(torch.bfloat16, 256, SHARED[2]).keys
    assert prefill_tiles(torch.float32, 128, HOPPER_SHARED).queries < 64
    assert [decode_tiles(torch.bfloat16, size, 8, HOPPER_SHARED)[0].keys for size in (64, 128, 256, 512)] == [
        64,
        64,
        32,
        32,
    ]


@pytest.mark.parametrize(("dtype", "size", "shared"), EVERY)
def test_the_choice_that_is_timed_changes_no_bits(dtype, size, shared):
    """Choices of the decode kernel differ in how loads are pipelined alone: sums have the same order."""
    kinds = {(tiles.queries, tiles.keys, tiles.warps) for tiles in decode_tiles(dtype, size, 4, shared)}
    assert len(kinds) == 1


def test_decode_prefers_two_stages():
    """The likely best comes first, and is what runs where nothing can be timed."""
    choices = decode_tiles(torch.bfloat16, 128, 4, HOPPER_SHARED)
    assert [tiles.stages for tiles in choices] == [2, 5]
    assert fastest(choices, lambda _: pytest.fail("nothing is timed on a CPU"), CPU) == choices[0]
    assert shared_memory(CPU) == HOPPER_SHARED


@pytest.mark.cuda
def test_the_fastest_is_found(gpu):
    """The one that takes less time on the GPU wins; one that does not run is left out."""
    numbers = torch.randn(2048, 2048, device=gpu)
    slow, fast, broken = (Tiles(16, 16, 4, stages) for stages in (3, 5, 7))

    def run(tiles):
        if tiles is broken:
            raise RuntimeError("out of resource")
        for _ in range(50 if tiles is slow else 1):
            numbers @ numbers

    assert fastest([broken, slow, fast], run, gpu) is fast
