"""A matrix product whose rows do not depend on each other: one tile shape and one order of summing for any batch.

Letters: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS, _OUTPUTS, _INPUTS = 64, 64, 64


def fixed_matmul(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`inputs @ weight.T + bias`, [M, N], summed in float32 in the order of the inputs.

    inputs: [M, K]. weight: [N, K]. bias: [N] or None. All of one dtype, rows contiguous.
    """
    rows, size = inputs.shape
    outputs = len(weight)
    result = inputs.new_empty((rows, outputs))
    if rows:
        _matmul[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, _ROWS))](
            inputs, weight, weight if bias is None else bias, result, rows, outputs, size,
            inputs.stride(0), weight.stride(0),
            ROWS=_ROWS, OUTPUTS=_OUTPUTS, INPUTS=_INPUTS, BIASED=bias is not None,
            num_warps=4, num_stages=4 if inputs.itemsize == 2 else 3,
        )  # fmt: skip
    return result


@triton.jit
def _matmul(
    inputs, weight, bias, result, rows, outputs, size, input_row, weight_row,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """One tile of the result."""
    out = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    step = tl.arange(0, INPUTS)
    out_there, row_there = out < outputs, row < rows
    left = inputs + row.to(tl.int64)[:, None] * input_row + step[None, :]
    right = weight + out.to(tl.int64)[None, :] * weight_row + step[:, None]
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, size, INPUTS):
        there = start + step < size
        own = tl.load(left + start, mask=row_there[:, None] & there[None, :], other=0.0)
        factors = tl.load(right + start, mask=there[:, None] & out_there[None, :], other=0.0)
        total = tl.dot(own, factors, total, input_precision="ieee")
    if BIASED:
        total += tl.load(bias + out, mask=out_there, other=0.0).to(tl.float32)[None, :]
    tl.store(
        result + row.to(tl.int64)[:, None] * outputs + out[None, :], total.to(result.dtype.element_ty),
        mask=row_there[:, None] & out_there[None, :],
    )  # fmt: skip
