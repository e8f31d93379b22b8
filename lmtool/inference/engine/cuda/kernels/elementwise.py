"""Fused operations on rows: RMS norm, MLP gates, rounding to e4m3, storing keys and values, a captured step's rows.

Letters: T tokens of the batch, H query heads, KV key heads, D head size, W width of the model, I inner size of the MLP,
S single queries, which come first, P positions a page, n pages of the longest text.

e4m3 numbers have eight bits: sign, four bits of exponent (bias 7), three of mantissa; largest 448, no infinity.
Rounding is done in integer arithmetic, the same on every GPU and in Triton's interpreter. After "FP8 Formats for Deep
Learning" (arXiv:2209.05433).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmtool.inference.engine.cuda.kernels.tiles import launch_settings


@lru_cache
def converts_e4m3(device: torch.device) -> bool:
    """True if the GPU has an instruction that converts e4m3: compute capability 8.9 and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def rounded_rows(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as e4m3, [M, K] uint8, and the factor on each, [M, 1] float32, which makes its largest number 448.

    inputs: [M, K], contiguous.
    """
    rows, size = inputs.shape
    stored = inputs.new_empty((rows, size), dtype=torch.uint8)
    scale = inputs.new_empty((rows, 1), dtype=torch.float32)
    if rows:
        block = triton.next_power_of_2(size)
        _round_rows[(rows,)](inputs, stored, scale, SIZE=size, BLOCK=block, num_warps=min(max(block // 512, 1), 16))
    return stored, scale


def as_stored(numbers: Tensor) -> Tensor:
    """The tensor of bytes as the dtype that `from_e4m3` reads fastest here."""
    return numbers.view(torch.float8_e4m3fn) if converts_e4m3(numbers.device) else numbers


@triton.jit
def to_e4m3(numbers) -> tl.tensor:
    """The bytes (uint8) of float32 numbers, rounded to nearest, ties to even, within plus or minus 448; NaN stays."""
    bits = numbers.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(numbers), 448.0)
    size_bits = size.to(tl.int32, bitcast=True)
    # 20 of 23 bits of mantissa go; the exponent's bias becomes 7.
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 numbers are multiples of 2**-9, which is what the last bit of 2**14 counts in float32.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    rounded = tl.where(size < 0.015625, small, normal)
    rounded = tl.where(numbers != numbers, 0x7F, rounded)
    return (rounded | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def from_e4m3(stored) -> tl.tensor:
    """The numbers (float16, exact) of e4m3 values, as such or as bytes; a GPU before 8.9 knows bytes only."""
    if stored.dtype == tl.uint8:
        bits = stored.to(tl.uint16)
        numbers = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    else:
        numbers = stored.to(tl.float16)
    return numbers


@triton.jit
def _round_rows(inputs, stored, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    there = dims < SIZE
    own = tl.load(inputs + row * SIZE + dims, mask=there, other=0.0).to(tl.float32)
    factor = tl.maximum(tl.max(tl.abs(own), axis=0), 1e-12) / 448.0
    tl.store(scale + row, factor)
    tl.store(stored + row * SIZE + dims, to_e4m3(own / factor), mask=there)


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm [T, W] (arXiv:1910.07467) of the residual stream after `delta` was added to it.

    residual: [T, W], contiguous, changed in place. delta: [T, W], contiguous; None adds nothing. weight: [W]. eps:
    added to the mean square. The sum is rounded to the residual's dtype before it is normed, in float32.
    """
    output = torch.empty_like(residual)
    tokens, width = residual.shape
    if tokens:
        block = triton.next_power_of_2(width)
        _add_norm[(tokens,)](
            residual, residual if delta is None else delta, weight, output, eps,
            WIDTH=width, BLOCK=block, ADDED=delta is not None, num_warps=min(max(block // 512, 1), 16),
            **launch_settings(residual.device),
        )  # fmt: skip
    return output


@triton.jit
def _add_norm(
    residual, delta, weight, output, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One token."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    dims = tl.arange(0, BLOCK)
    there = dims < WIDTH
    total = tl.load(residual + row + dims, mask=there, other=0.0)
    if ADDED:
        added = tl.load(delta + row + dims, mask=there, other=0.0)
        total = (total.to(tl.float32) + added.to(tl.float32)).to(total.dtype)
        tl.store(residual + row + dims, total, mask=there)
    wide = total.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    normed = wide * factor * tl.load(weight + dims, mask=there, other=0.0).to(tl.float32)
    tl.store(output + row + dims, normed.to(output.dtype.element_ty), mask=there)


_GATE_BLOCK = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, [T, I], computed in float32. gate_up: [T, 2 * I], contiguous: gates, then what they let by."""
    tokens, inner = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty((tokens, inner))
    if tokens:
        _silu_mul[(tokens, triton.cdiv(inner, _GATE_BLOCK))](
            gate_up, output, INNER=inner, BLOCK=_GATE_BLOCK, num_warps=4, **launch_settings(gate_up.device)
        )
    return output


@triton.jit
def _silu_mul(gate_up, output, INNER: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One block of one token."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = dims < INNER
    gate = tl.load(gate_up + row * 2 * INNER + dims, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * INNER + INNER + dims, mask=there, other=0.0).to(tl.float32)
    tl.store(output + row * INNER + dims, (gate * tl.sigmoid(gate) * up).to(output.dtype.element_ty), mask=there)


_ROWS, _PAGES = 128, 1024


def place_rows(
    ids: Tensor,
    lengths: Tensor,
    texts: Tensor,
    table: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    text_lengths: Tensor,
    pages: Tensor,
    page: int,
) -> None:
    """Fill the last five tensors but one with a step's rows, and make `lengths` those of the step after it.

    ids: [T] int32. lengths: [T] int32, positions of each row's text up to itself, 0 for a row of padding; those of the
    single queries grow by one, of padding not. texts: [T] int32, each row's row of `table`, [.., n] int32, the pages of
    every text. input_ids, positions, slots: [T] int64; a row of padding has position 0 and slot -1. text_lengths: [S]
    int32. pages: [S, n] int32, the pages of each single query's text; what follows the last one stays. page: P.
    """
    rows, singles, width = len(ids), len(text_lengths), table.shape[1]
    _place[(triton.cdiv(rows, _ROWS),)](
        ids, lengths, texts, table, input_ids, positions, slots, text_lengths, rows, singles, width,
        PAGE=page, BLOCK=_ROWS, num_warps=4,
    )  # fmt: skip
    _pages[(singles, triton.cdiv(width, _PAGES))](
        texts, table, text_lengths, pages, width, PAGE=page, BLOCK=_PAGES, num_warps=4
    )


@triton.jit(do_not_specialize=["rows", "singles", "width"])
def _place(
    ids, lengths, texts, table, input_ids, positions, slots, text_lengths, rows, singles, width,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    length = tl.load(lengths + row, mask=inside, other=0)
    there = length > 0
    position = tl.maximum(length - 1, 0)
    text = tl.load(texts + row, mask=there, other=0).to(tl.int64)
    block = tl.load(table + text * width + position // PAGE, mask=there, other=0).to(tl.int64)
    tl.store(input_ids + row, tl.load(ids + row, mask=inside, other=0).to(tl.int64), mask=inside)
    tl.store(positions + row, position.to(tl.int64), mask=inside)
    tl.store(slots + row, tl.where(there, block * PAGE + position % PAGE, -1), mask=inside)
    single = row < singles
    tl.store(text_lengths + row, length, mask=single)
    tl.store(lengths + row, length + 1, mask=single & there)


@triton.jit(do_not_specialize=["width"])
def _pages(texts, table, text_lengths, pages, width, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Some pages of one single query's text."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    used = column < tl.cdiv(tl.load(text_lengths + row), PAGE)
    text = tl.load(texts + row).to(tl.int64)
    tl.store(pages + row * width + column, tl.load(table + text * width + column, mask=used), mask=used)


def kv_write(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Store each token's keys and values.

    key: [T, KV, D]. value: [T, KV, Dv]. keys: [pages, P, KV, D], values: [pages, P, KV, Dv], both contiguous and
    changed in place. slots: [T'] int64, where the first T' tokens go, `page * P + offset`; a negative one is a row of
    padding and goes nowhere, like tokens after the first T'. scales: [2, KV] float32, what keys and values are divided
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
