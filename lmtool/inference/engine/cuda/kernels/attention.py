"""Attention over pages of keys and values: of one query a row, and of pieces of prompts.

Letters: N rows or pieces, T tokens of the batch, H query heads, KV key heads, G = H / KV, D head size, P positions a
page, S splits.

Prefill: causal, many queries of one text at a time. A query meets its keys in tiles at fixed positions of its text,
whichever queries share its program, and a tile in which it sees nothing changes nothing: so its bits do not depend on
where prompts are cut. After FlashAttention-2 (arXiv:2307.08691).

Decode: into how many parts a row is split, and where, depends on its own length alone, and parts are put together in
order: a row has the same bits in any batch. After "Flash-Decoding" (Dao, Haziza, Massa and Sizov, 2023).

The grid is fixed by the table's size, as a CUDA graph needs it: parts of all rows are numbered one after the other
from the lengths on the device, and each program takes every n-th of them. So a long text among short ones keeps the
whole GPU busy, and a program without a part returns after it has read the lengths.

Microseconds of a layer of 32 query and 8 key heads of 128 in bfloat16, on an NVIDIA H200, in a CUDA graph, by rows and
the positions of each:

| tiles | 1 x 128 | 1 x 2048 | 64 x 130 | 64 x 2048 | 256 x 130 |
|---|---|---|---|---|---|
| memory's limit | 0.1 | 2.0 | 8.0 | 126 | 32 |
| 64 keys, 5 stages, parts of 128 | 9.4 | 12.2 | 40 | 236 | 132 |
| 64 keys, 2 stages, parts of 128 | 8.0 | 12.1 | 30 | 167 | 96 |
| 64 keys, 2 stages, parts of 256 | 8.0 | 15.7 | 20 | 155 | 65 |
| 64 keys, 2 stages, parts of 512 | 7.9 | 24.0 | 20 | 149 | 65 |

More stages take so much shared memory that too few programs run at once. Short texts are one part therefore, and longer
ones have parts of 128. Parts put together by the program that ends last, without a second kernel, need more registers:
3.6 ms in place of 2.6 for a step of Llama 1B with 64 x 2048.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from lmtool.inference.engine.cuda.kernels.elementwise import as_stored, from_e4m3
from lmtool.inference.engine.cuda.kernels.tiles import decode_tiles, launch_settings, prefill_tiles, shared_memory
from lmtool.inference.engine.cuda.step_rows import QUERY_TILE

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.inference.engine.cuda.kernels.tiles import Tiles


_SPLIT_TOKENS = 128
"""Fewest positions in a part of a row, and what it is a multiple of: less would cost more to put together."""

_WHOLE_TOKENS = 256
"""Most positions of a row that is one part."""

_PROGRAMS = 2048
"""Programs that keep a large GPU busy, if there are as many parts."""

_ROWS = (256, 1024, 4096)
"""Rows whose lengths a program looks at: kernels are compiled for these numbers; more rows take several launches."""


def most_splits(kv_heads: int) -> int:
    """S, the most parts of a row, so that one long text alone is enough for a large GPU. kv_heads: KV."""
    return 32 if kv_heads > 4 else 64


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    scales: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """The attention output [N, H, Dv] of the last position of each of N texts; zero for a text of length 0.

    query: [N, H, D]. keys: [pages, P, KV, D]. values: [pages, P, KV, Dv]. table: [N, n] int32, the pages of each text
    in order. lengths: [N] int32, positions of each text, the query's own included. scaling: factor on the dot
    products. window: how many positions back a query sees, itself included. softcap: scores are squeezed into plus or
    minus this by tanh. scales: [2, KV] float32, factors on keys and values that are stored as e4m3; None where they are
    stored as they are. tiles: None for those of `decode_tiles`.

    The softmax and all sums are in float32.
    """
    output = query.new_empty(*query.shape[:2], values.shape[3])
    if scales is not None:
        keys, values = as_stored(keys), as_stored(values)
    for start in range(0, len(query), _ROWS[-1]):
        rows = slice(start, start + _ROWS[-1])
        _launch(
            query[rows], keys, values, table[rows], lengths[rows], output[rows],
            scaling, window, softcap, scales, tiles or default_tiles(query, values),
        )  # fmt: skip
    return output


def default_tiles(query: Tensor, values: Tensor) -> Tiles:
    """The tiles that are likely the best for a query [N, H, D] and values [pages, P, KV, Dv]."""
    return tile_choices(query, values)[0]


def tile_choices(query: Tensor, values: Tensor) -> list[Tiles]:
    """Tiles that run here, the likely best first."""
    size = max(query.shape[2], values.shape[3])
    return decode_tiles(query.dtype, size, query.shape[1] // values.shape[2], shared_memory(query.device))


def _launch(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    output: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    scales: Tensor | None,
    tiles: Tiles,
) -> None:
    rows, heads, size = query.shape
    kv_heads, value_size = values.shape[2], values.shape[3]
    splits = most_splits(kv_heads)
    places = min(splits, triton.cdiv(table.shape[1] * keys.shape[1], _SPLIT_TOKENS))
    partial = query.new_empty((rows, heads, places, value_size), dtype=torch.float32)
    highest = query.new_empty((2, rows, heads, places), dtype=torch.float32)
    value_block = max(16, triton.next_power_of_2(value_size))
    split = {
        "SPLITS": splits, "SPLIT_TOKENS": _SPLIT_TOKENS, "WHOLE_TOKENS": _WHOLE_TOKENS, "WINDOWED": window is not None,
        **launch_settings(query.device),
    }  # fmt: skip
    _decode[(kv_heads, min(rows * places, max(rows, _PROGRAMS // kv_heads)))](
        query, keys, values, table, lengths, partial, highest[0], highest[1], output,
        lengths if scales is None else scales[0], lengths if scales is None else scales[1],
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2), output.stride(0), output.stride(1),
        table.stride(0), rows, places, scaling, softcap or 0.0, window or 0,
        LENGTHS=next(block for block in _ROWS if rows <= block),
        GROUP=heads // kv_heads, ROWS=tiles.queries, PAGE=keys.shape[1],
        SIZE=size, SIZE_BLOCK=max(16, triton.next_power_of_2(size)),
        VALUE_SIZE=value_size, VALUE_BLOCK=value_block,
        TILE=tiles.keys, CAPPED=softcap is not None, SCALED=scales is not None, **split,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    _join[(rows, heads)](
        partial, highest[0], highest[1], output, lengths, output.stride(0), output.stride(1), places, window or 0,
        VALUE_SIZE=value_size, VALUE_BLOCK=value_block, CHUNK=min(16, splits), **split, num_warps=4,
    )  # fmt: skip


@triton.jit
def _seen(lengths, window, WINDOWED: tl.constexpr):
    """Positions that a query sees."""
    if WINDOWED:
        lengths = tl.minimum(lengths, window)
    return lengths


@triton.jit
def _part_tokens(seen, SPLITS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, WHOLE_TOKENS: tl.constexpr):
    """Positions in each part of a row whose query sees so many."""
    tokens = tl.maximum(tl.cdiv(tl.cdiv(seen, SPLITS), SPLIT_TOKENS), 1) * SPLIT_TOKENS
    return tl.where(seen <= WHOLE_TOKENS, WHOLE_TOKENS, tokens)


@triton.jit(
    do_not_specialize=[
        "table_row", "rows", "places", "window", "table", "lengths", "highest", "total", "key_scale", "value_scale",
    ]
)  # fmt: skip
def _decode(
    query, keys, values, table, lengths, partial, highest, total, output, key_scale, value_scale,
    query_row, query_head, key_page, key_position, key_head,
    value_page, value_position, value_head, output_row, output_head,
    table_row, rows, places, scaling, softcap, window,
    LENGTHS: tl.constexpr, SPLITS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, WHOLE_TOKENS: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Every n-th part of the rows, for the G query heads of one key head: weighted sum, highest score, sum of weights.

    A row of one part is finished here. The G heads are the rows of one matrix, padded to the 16 rows of a tensor core's
    product.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    kv_head = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, LENGTHS)
    seen = _seen(tl.load(lengths + numbers, mask=numbers < rows, other=0), window, WINDOWED)
    parts = tl.cdiv(seen, _part_tokens(seen, SPLITS, SPLIT_TOKENS, WHOLE_TOKENS))
    ends = tl.cumsum(parts, 0)
    scale, stretch = scaling, 1.0
    if SCALED:
        scale = scaling * tl.load(key_scale + kv_head)
        stretch = tl.load(value_scale + kv_head)
    heads = tl.arange(0, ROWS)
    member = heads < GROUP
    dims = tl.arange(0, SIZE_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    head_numbers = kv_head * GROUP + heads

    for part in range(tl.program_id(1), tl.sum(parts, 0), tl.num_programs(1)):
        before = ends <= part
        row = tl.sum(before.to(tl.int32), 0).to(tl.int64)
        split = part - tl.sum(tl.where(before, parts, 0), 0)
        length = tl.load(lengths + row)
        own = _seen(length, window, WINDOWED)
        tokens = _part_tokens(own, SPLITS, SPLIT_TOKENS, WHOLE_TOKENS)
        start = length - own + split * tokens
        end = tl.minimum(start + tokens, length)
        q = tl.load(
            query + row * query_row + head_numbers[:, None] * query_head + dims[None, :],
            mask=member[:, None] & (dims < SIZE)[None, :], other=0.0,
        )  # fmt: skip
        if SCALED:
            q = q.to(tl.float16)
        best = tl.full([ROWS], float("-inf"), tl.float32)
        weight_sum = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
        for tile in range(start, end, TILE):
            positions = tile + tl.arange(0, TILE)
            there = positions < end
            page = tl.load(table + row * table_row + positions // PAGE, mask=there, other=0).to(tl.int64)
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
            scores = tl.where(
                there[None, :],
                scores * 1.4426950408889634,  # to base 2: exp2 is one instruction
                float("-inf"),
            )
            higher = tl.maximum(best, tl.max(scores, axis=1))
            weights = tl.exp2(scores - higher[:, None])
            fading = tl.exp2(best - higher)
            value = tl.load(
                values + value_places[:, None] + value_dims[None, :],
                mask=there[:, None] & (value_dims < VALUE_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            if SCALED:
                value = from_e4m3(value)
            mixed = mixed * fading[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            weight_sum = weight_sum * fading + tl.sum(weights, axis=1)
            best = higher

        mixed = mixed * stretch
        stored = member[:, None] & (value_dims < VALUE_SIZE)[None, :]
        if own <= tokens:
            target = output + row * output_row + head_numbers[:, None] * output_head + value_dims[None, :]
            tl.store(target, (mixed / weight_sum[:, None]).to(output.dtype.element_ty), mask=stored)
        else:
            place = (row * tl.num_programs(0) * GROUP + head_numbers) * places + split
            tl.store(highest + place, best, mask=member)
            tl.store(total + place, weight_sum, mask=member)
            tl.store(partial + place[:, None] * VALUE_SIZE + value_dims[None, :], mixed, mask=stored)


@triton.jit(do_not_specialize=["places", "window", "lengths", "highest", "total"])
def _join(
    partial, highest, total, output, lengths, output_row, output_head, places, window,
    SPLITS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, WHOLE_TOKENS: tl.constexpr, CHUNK: tl.constexpr,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, WINDOWED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Put the parts of one row and head together; zero for an empty row, nothing for a row of one part."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seen = _seen(tl.load(lengths + row), window, WINDOWED)
    parts = tl.cdiv(seen, _part_tokens(seen, SPLITS, SPLIT_TOKENS, WHOLE_TOKENS))
    dims = tl.arange(0, VALUE_BLOCK)
    if parts != 1:
        first = (row * tl.num_programs(1) + head) * places
        every = tl.arange(0, SPLITS)
        top = tl.max(tl.load(highest + first + every, mask=every < parts, other=float("-inf")), axis=0)
        weight_sum = tl.zeros([VALUE_BLOCK], tl.float32)
        joined = tl.zeros([VALUE_BLOCK], tl.float32)
        for chunk in range(0, parts, CHUNK):
            numbers = chunk + tl.arange(0, CHUNK)
            there = numbers < parts
            share = tl.exp2(tl.load(highest + first + numbers, mask=there, other=float("-inf")) - top)
            sums = tl.load(total + first + numbers, mask=there, other=0.0)
            mixed = tl.load(
                partial + (first + numbers)[:, None] * VALUE_SIZE + dims[None, :],
                mask=there[:, None] & (dims < VALUE_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            weight_sum += tl.sum(sums * share, axis=0)
            joined += tl.sum(mixed * share[:, None], axis=0)
        result = joined / tl.where(weight_sum > 0, weight_sum, 1.0)
        tl.store(
            output + row * output_row + head * output_head + dims,
            result.to(output.dtype.element_ty), mask=dims < VALUE_SIZE,
        )  # fmt: skip


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
