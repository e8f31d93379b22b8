"""Stores keys and values of a batch's tokens in their pages: as they are, or normed and rotated on the way.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, P positions a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from lmtool.inference.engine.cuda.kernels.elementwise import to_e4m3
from lmtool.inference.engine.cuda.kernels.tiles import launch_settings

if TYPE_CHECKING:
    from torch import Tensor


def kv_write(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Store each token's keys and values.

    key: [T, KV, D]. value: [T, KV, Dv]. keys: [pages, P, KV, D], values: [pages, P, KV, Dv], both contiguous and
    changed in place. slots: [T'] int64, where the first T' tokens go, `page * P + offset`; a negative one is a row of
    padding and goes nowhere, like tokens behind the first T'. scales: [2, KV] float32, what keys and values are divided
    by before they are rounded to e4m3; keys and values are uint8 then. None: they are stored as they are.
    """
    if not len(slots):
        return
    kv_heads, size = key.shape[1:]
    value_size = value.shape[2]
    _write[(len(slots), kv_heads)](
        key, value, keys, values, slots, *_each(scales, slots),
        key.stride(0), key.stride(1), key.stride(2), value.stride(0), value.stride(1), value.stride(2),
        SIZE=size, SIZE_BLOCK=triton.next_power_of_2(size),
        VALUE_SIZE=value_size, VALUE_BLOCK=triton.next_power_of_2(value_size), SCALED=scales is not None,
        num_warps=1,
    )  # fmt: skip


def _each(scales: Tensor | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    """The scales of keys and those of values; anything where there are none."""
    return (unused, unused) if scales is None else (scales[0], scales[1])


@triton.jit(do_not_specialize=["slots", "key_scale", "value_scale"])
def _write(
    key, value, keys, values, slots, key_scale, value_scale,
    key_row, key_head, key_step, value_row, value_head, value_step,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    place = slot * tl.num_programs(1) + head
    dims = tl.arange(0, SIZE_BLOCK)
    there = (dims < SIZE) & (slot >= 0)
    own = tl.load(key + row * key_row + head * key_head + dims * key_step, mask=there)
    if SCALED:
        own = to_e4m3(own.to(tl.float32) / tl.load(key_scale + head))
    tl.store(keys + place * SIZE + dims, own, mask=there)
    value_dims = tl.arange(0, VALUE_BLOCK)
    value_there = (value_dims < VALUE_SIZE) & (slot >= 0)
    own_value = tl.load(value + row * value_row + head * value_head + value_dims * value_step, mask=value_there)
    if SCALED:
        own_value = to_e4m3(own_value.to(tl.float32) / tl.load(value_scale + head))
    tl.store(values + place * VALUE_SIZE + value_dims, own_value, mask=value_there)


def rotate_and_store(
    projected: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    head_norm: Tensor | None,
    eps: float,
    scales: Tensor | None = None,
) -> None:
    """Turn a layer's projections into rotated queries and stored keys and values.

    projected: [T, H + 2 * KV, D], contiguous: heads of queries, keys and values. query: [T, H, D], contiguous, filled.
    keys, values: [pages, P, KV, D], contiguous, changed in place. positions: [T] int64. slots: [T] int64, as in
    `kv_write`. cos, sin: [context, D / 2] float32. head_norm: [H + KV, D], weights of an RMS norm of each head before
    it is rotated (arXiv:1910.07467); eps: added to its mean square. D is even. scales: as in `kv_write`.

    The rotation is that of arXiv:2104.09864, with the halves of a head as the two coordinates.
    """
    tokens, heads, size = query.shape
    kv_heads = keys.shape[2]
    if not tokens:
        return
    half = size // 2
    _rotate[(tokens, heads + 2 * kv_heads)](
        projected, query, keys, values, positions, slots, cos, sin, head_norm if head_norm is not None else cos,
        *_each(scales, slots), eps,
        HEADS=heads, KV_HEADS=kv_heads, HALF=half, HALF_BLOCK=triton.next_power_of_2(half),
        NORMED=head_norm is not None, SCALED=scales is not None,
        num_warps=1, **launch_settings(projected.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["positions", "slots", "key_scale", "value_scale"])
def _rotate(
    projected, query, keys, values, positions, slots, cos, sin, head_norm, key_scale, value_scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, NORMED: tl.constexpr,
    SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, HALF_BLOCK)
    there = dims < HALF
    source = projected + (row * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF + dims
    first = tl.load(source, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    slot = tl.load(slots + row)
    kv_place = slot * KV_HEADS * 2 * HALF + dims
    if head >= HEADS + KV_HEADS:
        target = values + kv_place + (head - HEADS - KV_HEADS) * 2 * HALF
        stored = there & (slot >= 0)
        if SCALED:
            scale = tl.load(value_scale + head - HEADS - KV_HEADS)
            tl.store(target, to_e4m3(first / scale), mask=stored)
            tl.store(target + HALF, to_e4m3(second / scale), mask=stored)
        else:
            tl.store(target, first.to(values.dtype.element_ty), mask=stored)
            tl.store(target + HALF, second.to(values.dtype.element_ty), mask=stored)
    else:
        if NORMED:
            mean = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / (2 * HALF)
            factor = tl.rsqrt(mean + eps)
            weight = head_norm + head * 2 * HALF + dims
            first = first * factor * tl.load(weight, mask=there, other=0.0).to(tl.float32)
            second = second * factor * tl.load(weight + HALF, mask=there, other=0.0).to(tl.float32)
        angle = tl.load(positions + row) * HALF + dims
        cosine, sine = tl.load(cos + angle, mask=there, other=0.0), tl.load(sin + angle, mask=there, other=0.0)
        turned = first * cosine - second * sine
        turned_second = second * cosine + first * sine
        if head < HEADS:
            query_target = query + (row * HEADS + head) * 2 * HALF + dims
            tl.store(query_target, turned.to(query.dtype.element_ty), mask=there)
            tl.store(query_target + HALF, turned_second.to(query.dtype.element_ty), mask=there)
        else:
            target = keys + kv_place + (head - HEADS) * 2 * HALF
            stored = there & (slot >= 0)
            if SCALED:
                scale = tl.load(key_scale + head - HEADS)
                tl.store(target, to_e4m3(turned / scale), mask=stored)
                tl.store(target + HALF, to_e4m3(turned_second / scale), mask=stored)
            else:
                tl.store(target, turned.to(keys.dtype.element_ty), mask=stored)
                tl.store(target + HALF, turned_second.to(keys.dtype.element_ty), mask=stored)
