"""Causal attention of parts of prompts over pages."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from lmtool.inference.engine.cuda.step_rows import QUERY_TILE

pytestmark = pytest.mark.cuda

PARTS = ((0, 1), (0, 16), (15, 17), (60, 70), (130, 3), (63, 66))
"""First position and queries of each part: one token, a whole page, across pages, across tiles."""


def pages_of(device, dtype, size, kv_heads, group):
    generator = torch.Generator().manual_seed(size)
    width = -(-max(start + count for start, count in PARTS) // 16)
    pages = width * len(PARTS) + 1
    keys, values = (torch.randn(pages, 16, kv_heads, size, generator=generator).to(device, dtype) for _ in "kv")
    rows = sum(count for _, count in PARTS)
    query = torch.randn(rows + 2, kv_heads * group, size, generator=generator).to(device, dtype)
    table = (torch.randperm(pages - 1, generator=generator) + 1).view(len(PARTS), width).int().to(device)
    return query, keys, values, table


def tiles_of(parts, first, device):
    """Tiles of parts that begin at row `first`."""
    tiles, row = [], first
    for index, (start, count) in enumerate(parts):
        tiles += [(index, row + at, min(QUERY_TILE, count - at), start + at) for at in range(0, count, QUERY_TILE)]
        row += count
    return torch.tensor(tiles, dtype=torch.int32, device=device).view(-1, 4)


def plain(query, keys, values, pages, start, scaling, window, softcap):
    """Attention [Q, H, Dv] in float64 of queries at positions from `start` on."""
    key, value = (own[pages.long()].flatten(0, 1).double() for own in (keys, values))
    grouped = query.double().view(len(query), key.shape[1], -1, query.shape[-1])
    scores = torch.einsum("qkgd,tkd->qkgt", grouped, key) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    positions = torch.arange(len(key), device=query.device)
    queries = start + torch.arange(len(query), device=query.device).unsqueeze(1)
    hidden = positions > queries
    if window is not None:
        hidden |= positions <= queries - window
    scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
    return torch.einsum("qkgt,tkd->qkgd", scores.softmax(-1), value).flatten(1, 2)


@pytest.mark.parametrize(
    ("size", "kv_heads", "group", "window", "softcap"),
    [(64, 2, 1, None, None), (80, 1, 3, 24, None), (96, 1, 2, None, 5.0), (128, 1, 2, 1, None), (256, 1, 1, 70, 4.0)],
)
def test_equals_plain_attention(device, dtype, size, kv_heads, group, window, softcap):
    """Each query sees its own text up to itself; rows outside of all parts stay as they are."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    query, keys, values, table = pages_of(device, dtype, size, kv_heads, group)
    output = torch.full_like(query, 7)
    asked = {"scaling": size**-0.5, "window": window, "softcap": softcap}
    prefill_attention(query, keys, values, table, tiles_of(PARTS, 2, device), output, **asked)
    assert bool((output[:2] == 7).all())
    row = 2
    for index, (start, count) in enumerate(PARTS):
        own = slice(row, row + count)
        expected = plain(query[own], keys, values, table[index], start, *asked.values())
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(output[own].double(), expected, atol=tolerance, rtol=tolerance)
        row += count


def test_stored_as_e4m3(device, dtype):
    """Keys and values in bytes, with a scale for each head, give the attention of the numbers that they stand for."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    query, keys, values, table = pages_of(device, dtype, 64, 2, 1)
    scales = torch.tensor([[0.5, 2.0], [0.25, 1.0]], device=device)
    narrow = [
        (own.float() / scale[:, None]).to(torch.float8_e4m3fn)
        for own, scale in zip((keys, values), scales, strict=True)
    ]
    output = torch.zeros_like(query)
    tiles = tiles_of(PARTS, 0, device)
    prefill_attention(
        query, *(own.view(torch.uint8) for own in narrow), table, tiles, output, scaling=0.125, scales=scales
    )
    wide = [own.double() * scale[:, None] for own, scale in zip(narrow, scales, strict=True)]
    row = 0
    for index, (start, count) in enumerate(PARTS):
        own = slice(row, row + count)
        expected = plain(query[own], *wide, table[index], start, 0.125, None, None)
        torch.testing.assert_close(output[own].double(), expected, atol=2e-2, rtol=2e-2)
        row += count


def test_tiles_of_padding(device):
    """A tile without queries changes nothing, and may name any piece."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    query, keys, values, table = pages_of(device, torch.float32, 64, 1, 2)
    output = torch.ones_like(query)
    tiles = torch.zeros(3, 4, dtype=torch.int32, device=device)
    prefill_attention(query, keys, values, table, tiles, output, scaling=1.0)
    assert bool((output == 1).all())


@pytest.mark.parametrize("window", [None, 24])
def test_cuts_do_not_matter(device, window):
    """A query has the same bits wherever its prompt is cut."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    query, keys, values, table = pages_of(device, torch.float32, 64, 1, 2)
    query, one = query[:130], table[:1]
    results = []
    for cuts in ((0, 130), (0, 1, 130), (0, 16, 48, 130), (0, 64, 65, 129, 130)):
        parts = [(start, end - start) for start, end in pairwise(cuts)]
        output = torch.zeros_like(query)
        several = one.expand(len(parts), -1).contiguous()
        prefill_attention(
            query, keys, values, several, tiles_of(parts, 0, device), output, scaling=0.125, window=window
        )
        results.append(output)
    assert all(torch.equal(result, results[0]) for result in results)


def test_no_parts(device):
    """Nothing to do leaves the output alone."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    query, keys, values, table = pages_of(device, torch.float32, 64, 1, 2)
    output = torch.ones_like(query)
    prefill_attention(query, keys, values, table, tiles_of((), 0, device), output, scaling=1.0)
    assert bool((output == 1).all())
