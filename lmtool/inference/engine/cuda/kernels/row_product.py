"""The product of one row with a weight, and the gate of a gated MLP with it: what one stream alone spends its time on.

Letters: K inputs, N outputs.

Reading the weight once is all that takes time, so that no tensor core is needed: each program sums a few outputs on the
arithmetic units, and there are enough programs that the memory is never idle. Microseconds on an NVIDIA H200, in a CUDA
graph, of the library and here, for the products of an 8B and a 1B model in bfloat16 (memory's limit at 4.26 TB/s; all
of 68 shapes of programs were tried, this one is the best or within 4 % of it everywhere):

| | qkv | output | gate and up | down | head | 1B: qkv | output | gate and up | down | head |
|---|---|---|---|---|---|---|---|---|---|---|
| limit | 11.8 | 7.9 | 55.2 | 27.6 | 247 | 2.5 | 2.0 | 10.8 | 5.4 | 30.8 |
| library | 15.8 | 13.5 | 57.3 | 32.0 | 247 | 6.3 | 6.1 | 14.0 | 11.5 | 34.9 |
| here | 14.4 | 10.8 | 54.6 | 29.0 | 232 | 4.8 | 4.3 | 13.6 | 8.0 | 32.0 |
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lmtool.inference.engine.cuda.kernels.launch import launch_settings

_OUTPUTS, _INPUTS, _WARPS = 2, 2048, 2
"""Outputs of a program; of a gated product half as many, which need two rows of the weight each. Inputs at a time."""


def row_product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`inputs @ weight.T + bias`, [1, N], summed in float32. inputs: [1, K]. weight: [N, K]. bias: [N] or None.

    All of one dtype, contiguous.
    """
    return _launch(inputs, weight, bias, len(weight), gated=False)


def gated_row_product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`silu(gate) * up`, [1, N / 2], where gate and up are the halves of `row_product`, rounded to its dtype."""
    return _launch(inputs, weight, bias, len(weight) // 2, gated=True)


def _launch(inputs: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, *, gated: bool) -> Tensor:
    result = inputs.new_empty(1, outputs)
    block = _OUTPUTS // 2 if gated else _OUTPUTS
    _row_product[(triton.cdiv(outputs, block),)](
        inputs, weight, weight if bias is None else bias, result, outputs, weight.shape[1],
        OUTPUTS=block, INPUTS=_INPUTS, BIASED=bias is not None, GATED=gated,
        num_warps=_WARPS, **launch_settings(inputs.device),
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
