"""Pages hold what a plain cache holds."""

from __future__ import annotations

import torch

from lmtool.engine.cuda.paged_cache import PagedCache
from lmtool.engine.kv_cache import KVCache, LayerShape

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
    keys, values = paged.pages(layers[2][0])
    assert keys.shape == (6, 16, 1, 4)
    assert values.shape == (6, 16, 1, 6)
    assert keys.is_contiguous()
    assert values.is_contiguous()


def test_clear():
    """Cleared blocks are zero, in every layer; others stay."""
    paged, plain, layers = caches()
    paged.clear(torch.tensor([1, 5]))
    plain.clear(torch.tensor([1, 5]))
    for layer, _ in layers:
        ours = paged.read(layer, torch.arange(6), None, 1)
        theirs = plain.read(layer, torch.arange(6), None, 1)
        assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))


def test_rename():
    """Other objects may stand for the layers."""
    paged, _, layers = caches()
    before = paged.pages(layers[0][0])[0]
    others = [object() for _ in layers]
    paged.rename(others)
    assert paged.pages(others[0])[0] is before
