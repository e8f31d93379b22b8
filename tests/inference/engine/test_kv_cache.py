"""Storage of keys and values, in blocks and in pages, and how much of it there is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lmtool.core.errors import OutOfMemoryError, ResourceError
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.kv_cache import (
    BLOCK_TOKENS,
    KVCache,
    LayerShape,
    PagedCache,
    allocate,
    block_bytes,
    cache_blocks,
)

WIDE, NARROW = LayerShape(2, 8, 4), LayerShape(1, 4, 4)


@pytest.fixture
def layers():
    """Three layers of two shapes."""
    return [(nn.Module(), WIDE), (nn.Module(), NARROW), (nn.Module(), WIDE)]


@pytest.fixture
def cache(layers):
    """Five blocks, all cleared."""
    cache = KVCache(layers, 5, torch.float32, torch.device("cpu"))
    cache.clear(torch.arange(6))
    return cache


@pytest.mark.parametrize("blocks", [[3, 1], [2, 3]])
def test_round_trip(cache, layers, blocks):
    """Positions written to blocks in any order are read in the table's order; consecutive blocks without a copy."""
    tokens = 2 * BLOCK_TOKENS
    slots = torch.tensor([block * BLOCK_TOKENS + offset for block in blocks for offset in range(BLOCK_TOKENS)])
    stored = {}
    for index, (module, shape) in enumerate(layers):
        generator = torch.Generator().manual_seed(index)
        stored[module] = (
            torch.randn(shape.kv_heads, tokens, shape.key_dim, generator=generator),
            torch.randn(shape.kv_heads, tokens, shape.value_dim, generator=generator),
        )
        cache.write(module, slots, *stored[module])
    first = blocks[0] if blocks[1] == blocks[0] + 1 else None
    for module, (keys, values) in stored.items():
        read = cache.read(module, torch.tensor(blocks), first, streams=1)
        assert torch.equal(read[0], keys)
        assert torch.equal(read[1], values)


def test_several_streams(cache, layers):
    """Heads come first, streams within a head: the batch of a matrix product."""
    module, shape = layers[0]
    for block in range(1, 5):
        slots = torch.arange(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        head = torch.tensor([1.0, 2.0]).view(2, 1, 1) * block
        keys = head.expand(2, BLOCK_TOKENS, shape.key_dim)
        cache.write(module, slots, keys, keys[..., : shape.value_dim])
    keys, values = cache.read(module, torch.tensor([4, 3, 1, 0]), None, streams=2)
    assert keys.shape == (4, 2 * BLOCK_TOKENS, shape.key_dim)
    assert keys[:, ::BLOCK_TOKENS, 0].tolist() == [[4, 3], [1, 0], [8, 6], [2, 0]]
    assert values.shape == (4, 2 * BLOCK_TOKENS, shape.value_dim)


def test_gathered_blocks_are_not_kept(cache, layers):
    """Each read gives its own blocks, of any number and layer, though they lie where those of the read before did."""
    for index, (module, shape) in enumerate(layers):
        keys = torch.full((shape.kv_heads, 5 * BLOCK_TOKENS, shape.key_dim), float(index + 1))
        cache.write(module, torch.arange(BLOCK_TOKENS, 6 * BLOCK_TOKENS), keys, keys[..., : shape.value_dim])
    for index, table in ((0, [5, 1]), (1, [2, 4, 3, 1]), (2, [3]), (0, [5, 4, 3, 2, 1])):
        module, shape = layers[index]
        keys, values = cache.read(module, torch.tensor(table), None, streams=1)
        span = len(table) * BLOCK_TOKENS
        assert (keys.shape, values.shape) == (
            (shape.kv_heads, span, shape.key_dim),
            (shape.kv_heads, span, shape.value_dim),
        )
        assert (keys == index + 1).all()
        assert (values == index + 1).all()


def test_rename(cache, layers):
    """Other objects find what was stored under those in their place."""
    (module, shape), *_ = layers
    keys = torch.ones(shape.kv_heads, BLOCK_TOKENS, shape.key_dim)
    cache.write(module, torch.arange(BLOCK_TOKENS, 2 * BLOCK_TOKENS), keys, keys[..., : shape.value_dim])
    others = [object() for _ in layers]
    cache.rename(others)
    assert torch.equal(cache.read(others[0], torch.tensor([1]), 1, streams=1)[0], keys)
    assert not cache.read(others[2], torch.tensor([1]), 1, streams=1)[0].any()


def test_clear(cache, layers):
    """A cleared block holds zeros, in every layer; the others keep what they have."""
    for module, shape in layers:
        ones = torch.full((shape.kv_heads, 2 * BLOCK_TOKENS, shape.key_dim), torch.nan)
        cache.write(module, torch.arange(BLOCK_TOKENS, 3 * BLOCK_TOKENS), ones, ones[..., : shape.value_dim])
    cache.clear(torch.tensor([2]))
    for module, _ in layers:
        keys, values = cache.read(module, torch.tensor([2]), 2, streams=1)
        assert not keys.any()
        assert not values.any()
        assert cache.read(module, torch.tensor([1]), 1, streams=1)[0].isnan().all()


def test_given_back():
    """Whole pages of blocks that nobody uses are the system's; blocks beside them keep their content."""
    layers = [(nn.Module(), LayerShape(2, 64, 128)), (nn.Module(), LayerShape(1, 64, 64))]
    cache = KVCache(layers, 6, torch.float32, torch.device("cpu"))
    for module, _ in layers:
        for part in cache.memory(module):
            part.fill_(1.0)
    cache.give_back(2, 3)
    for module, _ in layers:
        for part in cache.memory(module):
            assert [int(part[:, block].min()) for block in range(7)] == [1, 1, 0, 0, 0, 1, 1]
            assert [int(part[:, block].max()) for block in range(7)] == [1, 1, 0, 0, 0, 1, 1]


def test_block_bytes():
    """Bytes of one block over all layers."""
    assert block_bytes([WIDE, NARROW, WIDE], torch.float32) == BLOCK_TOKENS * (2 * 12 + 8 + 2 * 12) * 4
    assert block_bytes([WIDE], torch.bfloat16) == BLOCK_TOKENS * 2 * 12 * 2


CPU = torch.device("cpu")
SHAPES = [LayerShape(2, 8, 8)] * 3
BYTES = BLOCK_TOKENS * 3 * 2 * 16 * 4


def blocks(context=100, fewest=6, **settings):
    """For a small float32 model."""
    return cache_blocks("m", SHAPES, context, torch.float32, CPU, EngineConfig(**settings), fewest)


def test_full_contexts():
    """Room for every stream to be as long as it may, and for no more."""
    assert blocks(max_streams=5) == 5 * 7


def test_on_a_cpu_32_contexts():
    """More streams share the room; a GPU has room for all."""
    assert blocks(max_streams=256) == 32 * 7


def test_never_fewer_than_are_needed():
    """One short stream needs less than the check at load."""
    assert blocks(context=16, max_streams=1) == 6


def test_as_asked():
    """As many whole blocks as the bytes hold."""
    assert blocks(kv_cache_bytes=10 * BYTES + 5) == 10


def test_too_few():
    """Says how many bytes are needed."""
    with pytest.raises(ResourceError, match=f"it needs at least {6 * BYTES}$"):
        blocks(kv_cache_bytes=6 * BYTES - 1)


def test_more_than_any_machine_has():
    """The allocation's failure names the bytes and the flag."""
    with pytest.raises(OutOfMemoryError, match=f"no memory for the key-value cache of m: {BYTES << 40} bytes"):
        allocate("m", [(object(), shape) for shape in SHAPES], 1 << 40, torch.float32, CPU)


CPU = torch.device("cpu")


def caches():
    """A paged and a plain cache with the same contents: two layers of one shape, one of another."""
    layers = [(object(), LayerShape(2, 8, 8)), (object(), LayerShape(2, 8, 8)), (object(), LayerShape(1, 4, 6))]
    paged, plain = (kind(layers, 5, torch.float32, CPU) for kind in (PagedCache, KVCache))
    plain.clear(torch.arange(6))
    generator = torch.Generator().manual_seed(0)
    slots = torch.tensor([16, 31, 47, 64, 90])
    for layer, shape in layers:
        key = torch.randn(shape.kv_heads, 5, shape.key_dim, generator=generator)
        value = torch.randn(shape.kv_heads, 5, shape.value_dim, generator=generator)
        paged.write(layer, slots, key, value)
        plain.write(layer, slots, key, value)
    return paged, plain, layers


def test_reads_what_a_plain_cache_reads():
    """The same keys and values come back, for one stream and for several."""
    paged, plain, layers = caches()
    for layer, _ in layers:
        for table, streams in (([4, 1, 2], 1), ([1, 2, 5, 4], 2)):
            ours = paged.read(layer, torch.tensor(table), None, streams)
            theirs = plain.read(layer, torch.tensor(table), None, streams)
            assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))


def test_pages_are_contiguous_and_in_kernel_order():
    """A layer's pages are [pages, positions, heads, dim] without gaps."""
    paged, _, layers = caches()
    keys, values = paged.memory(layers[2][0])
    assert keys.shape == (6, 16, 1, 4)
    assert values.shape == (6, 16, 1, 6)
    assert keys.is_contiguous()
    assert values.is_contiguous()


def test_clear_pages():
    """Cleared blocks are zero, in every layer; others stay."""
    paged, plain, layers = caches()
    paged.clear(torch.tensor([1, 5]))
    plain.clear(torch.tensor([1, 5]))
    for layer, _ in layers:
        ours = paged.read(layer, torch.arange(6), None, 1)
        theirs = plain.read(layer, torch.arange(6), None, 1)
        assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))


def test_rename_pages():
    """Other objects may stand for the layers."""
    paged, _, layers = caches()
    before = paged.memory(layers[0][0])[0]
    others = [object() for _ in layers]
    paged.rename(others)
    assert paged.memory(others[0])[0] is before


class TestScaled:
    """Pages of eight bits."""

    def test_scales_follow_their_layers(self, layers):
        """Each layer has its own, also under another name; without any there are none."""
        device, scales = torch.device("cpu"), [torch.full((2, shape.kv_heads), 0.5) for _, shape in layers]
        paged = PagedCache(layers, 3, torch.uint8, device, scales)
        assert all(paged.scales(layer) is scale for (layer, _), scale in zip(layers, scales, strict=True))
        assert paged.block_bytes * 4 == block_bytes([shape for _, shape in layers], torch.float32)
        names = [object() for _ in layers]
        paged.rename(names)
        assert all(paged.scales(name) is scale for name, scale in zip(names, scales, strict=True))
        assert PagedCache(layers, 3, torch.float32, device).scales(layers[0][0]) is None

    def test_scales_leave_room(self, layers):
        """A head's largest number becomes a quarter of the largest of e4m3 or less, by a power of two; zeros stay."""
        paged = PagedCache(layers, 3, torch.float32, torch.device("cpu"))
        keys, _ = paged.memory(layers[0][0])
        keys[2, 5, 1, 3] = -300.0
        keys[1, 0, 1] = 20.0
        keys[0, 1, 0] = 1e-3
        first, *others = paged.e4m3_scales()
        assert first[0, 1] == 4
        assert 56 < 1e-3 / first[0, 0] <= 112
        assert first[1].tolist() == [1, 1]
        assert all(bool((scale == 1).all()) for scale in others)
