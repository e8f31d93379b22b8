"""Attention of pieces of prompts over pages of keys and values: causal, many queries of one text at a time.

Letters: T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size, P positions a page, N pieces.

A query meets its keys in tiles at fixed positions of its text, whichever queries share its program, and a tile in which
it sees nothing changes nothing: so its bits do not depend on where prompts are cut. After FlashAttention-2
(arXiv:2307.08691).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from lmtool.inference.engine.cuda.kernels.e4m3 import as_stored, from_e4m3
from lmtool.inference.engine.cuda.kernels.tiles import prefill_tiles, shared_memory
from lmtool.inference.engine.cuda.step_rows import QUERY_TILE

if TYPE_CHECKING:
    from torch import Tensor


def prefill_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    tiles: Tensor,
    output: Tensor,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    scales: Tensor | None = None,
) -> None:
    """Fill the rows of `output` that the tiles name with the attention output of those queries.

    query: [T, H, D]. keys: [pages, P, KV, D]. values: [pages, P, KV, Dv]. table: [N, n] int32, the pages of each
    piece's text in order. tiles: [tiles, 4] int32: the piece, the row of the tile's first query in the batch, how many
    queries it has (0, for padding, to `QUERY_TILE`, neighbours in the batch and in the text), and the first one's
    position in the text. output: [T, H, Dv], changed in place; rows that no tile names stay. The rest is as in
    `decode_attention`.
    """
    if not len(tiles):
        return
    heads, size = query.shape[1:]
    value_size = values.shape[3]
    shape = prefill_tiles(query.dtype, max(size, value_size), shared_memory(query.device))
    if scales is not None:
        keys, values = as_stored(keys), as_stored(values)
    _prefill[(len(tiles), heads, QUERY_TILE // shape.queries)](
        query, keys, values, table, tiles, output,
        table if scales is None else scales[0], table if scales is None else scales[1],
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2), table.stride(0),
        output.stride(0), output.stride(1), scaling, softcap or 0.0, window or 0,
        GROUP=heads // values.shape[2], PAGE=keys.shape[1],
        SIZE=size, SIZE_BLOCK=max(16, triton.next_power_of_2(size)),
        VALUE_SIZE=value_size, VALUE_BLOCK=max(16, triton.next_power_of_2(value_size)),
        QUERIES=shape.queries, TILE=shape.keys,
        WINDOWED=window is not None, CAPPED=softcap is not None, SCALED=scales is not None,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_row", "window", "table", "tiles", "key_scale", "value_scale"])
def _prefill(
    query, keys, values, table, tiles, output, key_scale, value_scale,
    query_row, query_head, key_page, key_position, key_head,
    value_page, value_position, value_head, table_row, output_row, output_head,
    scaling, softcap, window,
    GROUP: tl.constexpr, PAGE: tl.constexpr,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Some queries of a tile for one head."""
    entry = tiles + tl.program_id(0) * 4
    head = tl.program_id(1)
    kv_head = (head // GROUP).to(tl.int64)
    skipped = tl.program_id(2) * QUERIES
    piece = tl.load(entry).to(tl.int64)
    first_row = tl.load(entry + 1) + skipped
    count = tl.minimum(tl.load(entry + 2) - skipped, QUERIES)
    start = tl.load(entry + 3) + skipped
    scale, stretch = scaling, 1.0
    if SCALED:
        scale = scaling * tl.load(key_scale + kv_head)
        stretch = tl.load(value_scale + kv_head)

    queries = tl.arange(0, QUERIES)
    dims = tl.arange(0, SIZE_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    rows = (first_row + queries).to(tl.int64)
    query_positions = start + queries
    q = tl.load(
        query + rows[:, None] * query_row + head * query_head + dims[None, :],
        mask=(queries < count)[:, None] & (dims < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    if SCALED:
        q = q.to(tl.float16)

    end = tl.where(count > 0, start + count, 0)
    first = 0
    if WINDOWED:
        first = tl.maximum(start - window + 1, 0) // TILE * TILE
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    weight_sum = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, VALUE_BLOCK], tl.float32)
    for tile in range(first, end, TILE):
        positions = tile + tl.arange(0, TILE)
        there = positions < end
        page = tl.load(table + piece * table_row + positions // PAGE, mask=there, other=0).to(tl.int64)
        inside = positions % PAGE
        key_places = page * key_page + inside * key_position + kv_head * key_head
        value_places = page * value_page + inside * value_position + kv_head * value_head
        key = tl.load(
            keys + key_places[None, :] + dims[:, None],
            mask=there[None, :] & (dims < SIZE)[:, None], other=0.0,
        )  # fmt: skip
        if SCALED:
            key = from_e4m3(key)
        scores = tl.dot(q, key, input_precision="ieee") * scale
        if CAPPED:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        visible = positions[None, :] <= query_positions[:, None]
        if WINDOWED:
            visible = visible & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(
            visible,
            scores * 1.4426950408889634,  # to base 2: exp2 is one instruction
            float("-inf"),
        )
        higher = tl.maximum(best, tl.max(scores, axis=1))
        base = tl.where(higher > float("-inf"), higher, 0.0)  # a query may see nothing of a window's first tile
        weights = tl.exp2(scores - base[:, None])
        fading = tl.exp2(best - base)
        value = tl.load(
            values + value_places[:, None] + value_dims[None, :],
            mask=there[:, None] & (value_dims < VALUE_SIZE)[None, :], other=0.0,
        )  # fmt: skip
        if SCALED:
            value = from_e4m3(value)
        mixed = mixed * fading[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        weight_sum = weight_sum * fading + tl.sum(weights, axis=1)
        best = higher

    result = mixed * stretch / tl.where(weight_sum > 0, weight_sum, 1.0)[:, None]
    tl.store(
        output + rows[:, None] * output_row + head * output_head + value_dims[None, :],
        result.to(output.dtype.element_ty), mask=(queries < count)[:, None] & (value_dims < VALUE_SIZE)[None, :],
    )  # fmt: skip
