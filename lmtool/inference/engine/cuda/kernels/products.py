"""Matrix products: of any number of rows that do not depend on each other, and of a single row.

Letters: M rows, K inputs, N outputs.

`fixed_matmul` has one order of summing for any batch, and two shapes of tile. With few rows reading the weights takes
the time, so tiles are small enough for every part of the GPU to have one. With many rows each program computes large
tiles one after the other, those of the same outputs at the same time, so that weights come from memory once. Both sum
over K in the same order, `_INPUTS` at a time; whether tensor cores give the same bits in both is measured where it
matters (`cuda/products.py`).

`row_product` and the gate of a gated MLP with it take most of the time of a single stream. Reading the weight once is
all that takes time, so no tensor core is needed: each program sums a few outputs on the arithmetic units, and there are
enough programs that the memory is never idle. Microseconds on an NVIDIA H200, in a CUDA graph, of the library and here,
for the products of an 8B and a 1B model in bfloat16 (memory's limit at 4.26 TB/s; all of 68 shapes of programs were
tried, this one is the best or within 4 % of it everywhere):

| | qkv | output | gate and up | down | head | 1B: qkv | output | gate and up | down | head |
|---|---|---|---|---|---|---|---|---|---|---|
| limit | 11.8 | 7.9 | 55.2 | 27.6 | 247 | 2.5 | 2.0 | 10.8 | 5.4 | 30.8 |
| library | 15.8 | 13.5 | 57.3 | 32.0 | 247 | 6.3 | 6.1 | 14.0 | 11.5 | 34.9 |
| here | 14.4 | 10.8 | 54.6 | 29.0 | 232 | 4.8 | 4.3 | 13.6 | 8.0 | 32.0 |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmtool.inference.engine.cuda.kernels.elementwise import as_stored, from_e4m3
from lmtool.inference.engine.cuda.kernels.tiles import launch_settings

FEW_ROWS = 128
"""Most rows for which small tiles are used."""


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """The shape of a program's tile."""

    rows: int
    outputs: int
    inputs: int
    """Summed at a time."""
    warps: int
    stages: int


_INPUTS = 64
SMALL = ProductTiles(rows=64, outputs=64, inputs=_INPUTS, warps=4, stages=4)
LARGE = ProductTiles(rows=128, outputs=128, inputs=_INPUTS, warps=8, stages=3)
_FLOAT32 = ProductTiles(rows=32, outputs=64, inputs=32, warps=4, stages=2)
"""For the arithmetic units of single numbers, whatever the number of rows."""


def fixed_matmul(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    scale: Tensor | None = None,
    tiles: ProductTiles | None = None,
) -> Tensor:
    """`inputs @ weight.T + bias`, [M, N], summed in float32 in the order of the inputs.

    inputs: [M, K]. weight: [N, K]. bias: [N] or None. All of one dtype, rows contiguous. scale: [N] float32, factors on
    the rows of a weight that is stored as e4m3, in bytes; None for a weight that is stored as it is. tiles: None for
    `SMALL` or `LARGE`, by the number of rows.
    """
    rows, size = inputs.shape
    outputs = len(weight)
    result = inputs.new_empty((rows, outputs))
    if not rows:
        return result
    if inputs.dtype == torch.float32:
        tiles = _FLOAT32
    elif tiles is None:
        tiles = SMALL if rows <= FEW_ROWS else LARGE
    parts = triton.cdiv(outputs, tiles.outputs) * triton.cdiv(rows, tiles.rows)
    programs = min(parts, _processors(inputs.device)) if tiles == LARGE else parts
    _matmul[(programs,)](
        inputs, weight if scale is None else as_stored(weight), weight if bias is None else bias,
        weight if scale is None else scale, result, rows, outputs, size, inputs.stride(0), weight.stride(0),
        ROWS=tiles.rows, OUTPUTS=tiles.outputs, INPUTS=tiles.inputs,
        BIASED=bias is not None, SCALED=scale is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return result


@lru_cache
def _processors(device: torch.device) -> int:
    """Parts of the GPU that each run programs of their own; one on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit(do_not_specialize=["rows"])
def _matmul(
    inputs, weight, bias, scale, result, rows, outputs, size, input_row, weight_row,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Every n-th tile of the result, all tiles of the same outputs before the next ones."""
    row_tiles = tl.cdiv(rows, ROWS)
    for tile in range(tl.program_id(0), row_tiles * tl.cdiv(outputs, OUTPUTS), tl.num_programs(0)):
        out = tile // row_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
        row = tile % row_tiles * ROWS + tl.arange(0, ROWS)
        step = tl.arange(0, INPUTS)
        out_there, row_there = out < outputs, row < rows
        left = inputs + row.to(tl.int64)[:, None] * input_row + step[None, :]
        right = weight + out.to(tl.int64)[None, :] * weight_row + step[:, None]
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, size, INPUTS):
            there = start + step < size
            own = tl.load(left + start, mask=row_there[:, None] & there[None, :], other=0.0)
            factors = tl.load(right + start, mask=there[:, None] & out_there[None, :], other=0.0)
            if SCALED:
                factors = from_e4m3(factors).to(own.dtype)
            total = tl.dot(own, factors, total, input_precision="ieee")
        if SCALED:
            total *= tl.load(scale + out, mask=out_there, other=0.0)[None, :]
        if BIASED:
            total += tl.load(bias + out, mask=out_there, other=0.0).to(tl.float32)[None, :]
        tl.store(
            result + row.to(tl.int64)[:, None] * outputs + out[None, :], total.to(result.dtype.element_ty),
            mask=row_there[:, None] & out_there[None, :],
        )  # fmt: skip


_ROW_OUTPUTS, _ROW_INPUTS, _ROW_WARPS = 2, 2048, 2
"""Outputs of a program; of a gated product half as many, which need two rows of the weight each. Inputs at a time."""


def row_product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`inputs @ weight.T + bias`, [1, N], summed in float32. inputs: [1, K]. weight: [N, K]. bias: [N] or None.

    All of one dtype, contiguous.
    """
    return _launch_row_product(inputs, weight, bias, len(weight), gated=False)


def gated_row_product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`silu(gate) * up`, [1, N / 2], where gate and up are the halves of `row_product`, rounded to its dtype."""
    return _launch_row_product(inputs, weight, bias, len(weight) // 2, gated=True)


def _launch_row_product(inputs: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, *, gated: bool) -> Tensor:
    result = inputs.new_empty(1, outputs)
    block = _ROW_OUTPUTS // 2 if gated else _ROW_OUTPUTS
    _row_product[(triton.cdiv(outputs, block),)](
        inputs, weight, weight if bias is None else bias, result, outputs, weight.shape[1],
        OUTPUTS=block, INPUTS=_ROW_INPUTS, BIASED=bias is not None, GATED=gated,
        num_warps=_ROW_WARPS, **launch_settings(inputs.device),
    )  # fmt: skip
    return result


@triton.jit
def _row_product(
    inputs, weight, bias, result, outputs, size,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A few outputs. The first weights are loaded before the inputs are there."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    out = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    step = tl.arange(0, INPUTS)
    there = out < outputs
    own = weight + out.to(tl.int64)[:, None] * size + step[None, :]
    other = own + outputs.to(tl.int64) * size
    mask = there[:, None] & (step < size)[None, :]
    factors = tl.load(own, mask=mask, other=0.0)
    if GATED:
        others = tl.load(other, mask=mask, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    numbers = tl.load(inputs + step, mask=step < size, other=0.0).to(tl.float32)
    total = factors.to(tl.float32) * numbers[None, :]
    if GATED:
        total_up = others.to(tl.float32) * numbers[None, :]
    for start in range(INPUTS, size, INPUTS):
        inside = start + step < size
        mask = there[:, None] & inside[None, :]
        factors = tl.load(own + start, mask=mask, other=0.0)
        numbers = tl.load(inputs + start + step, mask=inside, other=0.0).to(tl.float32)
        total += factors.to(tl.float32) * numbers[None, :]
        if GATED:
            others = tl.load(other + start, mask=mask, other=0.0)
            total_up += others.to(tl.float32) * numbers[None, :]
    value = _rounded(tl.sum(total, axis=1), bias + out, there, result, BIASED)
    if GATED:
        up = _rounded(tl.sum(total_up, axis=1), bias + outputs + out, there, result, BIASED)
        value = value * tl.sigmoid(value) * up
    tl.store(result + out, value.to(result.dtype.element_ty), mask=there)


@triton.jit
def _rounded(total, bias, there, result, BIASED: tl.constexpr):
    """With the bias, and rounded as a product of its own would be."""
    if BIASED:
        total += tl.load(bias, mask=there, other=0.0).to(tl.float32)
    return total.to(result.dtype.element_ty).to(tl.float32)
