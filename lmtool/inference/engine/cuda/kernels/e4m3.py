"""Numbers of eight bits, e4m3: sign, four bits of exponent (bias 7), three of mantissa; largest 448, no infinity.

Rounding is done in integer arithmetic, the same on every GPU and in Triton's interpreter. After "FP8 Formats for Deep
Learning" (arXiv:2209.05433).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@lru_cache
def converts_e4m3(device: torch.device) -> bool:
    """Whether the GPU has an instruction that converts e4m3: compute capability 8.9 and later."""
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
