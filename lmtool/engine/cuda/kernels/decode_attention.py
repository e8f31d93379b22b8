"""Attention of one query a row over pages of keys and values, each row's keys split among several programs.

Letters: N rows, H query heads, KV key heads, G = H / KV, D head size, P positions a page, S splits.

Where a row is split depends on its own length and on S alone, and parts are put together in order: with a fixed S, a
row has the same bits in any batch. After "Flash-Decoding" (Dao, Haziza, Massa and Sizov, 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64
"""Keys looked at together; a split is a whole number of tiles."""


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
    splits: int = 8,
) -> Tensor:
    """The attention output [N, H, Dv] of the last position of each of N texts; zero for a text of length 0.

    query: [N, H, D]. keys: [pages, P, KV, D]. values: [pages, P, KV, Dv]. table: [N, n] int32, the pages of each text
    in order. lengths: [N] int32, positions of each text, the query's own included. scaling: factor on the dot
    products. window: how many positions back a query sees, itself included. softcap: scores are squeezed into plus or
    minus this by tanh. splits: S, parts that a text is cut into at most.

    The softmax and all sums are in float32.
    """
    rows, heads, size = query.shape
    kv_heads, value_size = values.shape[2], values.shape[3]
    partial = query.new_empty((rows, heads, splits, value_size), dtype=torch.float32)
    highest = query.new_empty((2, rows, heads, splits), dtype=torch.float32)
    output = query.new_empty((rows, heads, value_size))
    if not rows:
        return output
    group = heads // kv_heads
    _decode[(rows, kv_heads, splits)](
        query, keys, values, table, lengths, partial, highest[0], highest[1],
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2), table.stride(0),
        scaling, softcap or 0.0, window or 0,
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), PAGE=keys.shape[1], SPLITS=splits,
        SIZE=size, SIZE_BLOCK=max(16, triton.next_power_of_2(size)),
        VALUE_SIZE=value_size, VALUE_BLOCK=max(16, triton.next_power_of_2(value_size)),
        TILE=_TILE, WINDOWED=window is not None, CAPPED=softcap is not None,
        num_warps=4,
    )  # fmt: skip
    _join[(rows, heads)](
        partial, highest[0], highest[1], output, output.stride(0), output.stride(1),
        SPLITS=splits, SPLITS_BLOCK=triton.next_power_of_2(splits),
        VALUE_SIZE=value_size, VALUE_BLOCK=max(16, triton.next_power_of_2(value_size)),
        num_warps=4,
    )  # fmt: skip
    return output


@triton.jit
def _decode(
    query, keys, values, table, lengths, partial, highest, total,
    query_row, query_head, key_page, key_position, key_head,
    value_page, value_position, value_head, table_row,
    scaling, softcap, window,
    GROUP: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    TILE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """One part of one row for the G query heads of one key head: their weighted sum, highest score and sum of weights.

    The G heads are the rows of one matrix, padded to the 16 rows of a tensor core's product.
    """
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths + row)
    first = 0
    if WINDOWED:
        first = tl.maximum(length - window, 0)
    tiles = tl.cdiv(tl.cdiv(length - first, SPLITS), TILE)
    start = first + split * tiles * TILE
    end = tl.minimum(start + tiles * TILE, length)

    heads = tl.arange(0, ROWS)
    member = heads < GROUP
    dims = tl.arange(0, SIZE_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    head_numbers = kv_head * GROUP + heads
    q = tl.load(
        query + row * query_row + head_numbers[:, None] * query_head + dims[None, :],
        mask=member[:, None] & (dims < SIZE)[None, :], other=0.0,
    )  # fmt: skip

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
        scores = tl.dot(q, key, input_precision="ieee") * scaling
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
        mixed = mixed * fading[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        weight_sum = weight_sum * fading + tl.sum(weights, axis=1)
        best = higher

    place = (row * tl.num_programs(1) * GROUP + head_numbers) * SPLITS + split
    tl.store(highest + place, best, mask=member)
    tl.store(total + place, weight_sum, mask=member)
    tl.store(
        partial + place[:, None] * VALUE_SIZE + value_dims[None, :], mixed,
        mask=member[:, None] & (value_dims < VALUE_SIZE)[None, :],
    )  # fmt: skip


@triton.jit
def _join(
    partial, highest, total, output, output_row, output_head,
    SPLITS: tl.constexpr, SPLITS_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the parts of one row and head together."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = (row * tl.num_programs(1) + head) * SPLITS
    parts = tl.arange(0, SPLITS_BLOCK)
    dims = tl.arange(0, VALUE_BLOCK)
    best = tl.load(highest + place + parts, mask=parts < SPLITS, other=float("-inf"))
    sums = tl.load(total + place + parts, mask=parts < SPLITS, other=0.0)
    used = best > float("-inf")
    top = tl.max(best, axis=0)
    share = tl.exp2(best - tl.where(top > float("-inf"), top, 0.0))
    mixed = tl.load(
        partial + (place + parts)[:, None] * VALUE_SIZE + dims[None, :],
        mask=used[:, None] & (dims < VALUE_SIZE)[None, :], other=0.0,
    )  # fmt: skip
    weight_sum = tl.sum(sums * share, axis=0)
    joined = tl.sum(mixed * share[:, None], axis=0) / tl.where(weight_sum > 0, weight_sum, 1.0)
    tl.store(
        output + row * output_row + head * output_head + dims,
        joined.to(output.dtype.element_ty), mask=dims < VALUE_SIZE,
    )  # fmt: skip
