"""A matrix product whose rows do not depend on each other: one tile shape and one order of summing for any batch.

Letters: M rows, K inputs, N outputs.

There are two shapes of tile. With few rows reading the weights is what takes time, so that tiles are small enough for
every part of the GPU to have one. With many rows each program computes large tiles one after the other, those of the
same outputs at the same time, so that weights come from memory once. Both sum over K in the same order, `_INPUTS` at a
time; whether tensor cores give the same bits in both is measured where it matters (`products.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from lmtool.inference.engine.cuda.kernels.e4m3 import as_stored, from_e4m3

if TYPE_CHECKING:
    from torch import Tensor

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
