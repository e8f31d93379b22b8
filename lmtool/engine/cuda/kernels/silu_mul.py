"""The gate of a gated MLP: SiLU of one half of a projection times the other half.

Letters: T tokens of the batch, I inner size of the MLP.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, [T, I], computed in float32. gate_up: [T, 2 * I], contiguous: gates, then what they let by."""
    tokens, inner = len(gate_up), gate_up.shape[1] // 2
    output = gate_up.new_empty((tokens, inner))
    if tokens:
        _silu_mul[(tokens, triton.cdiv(inner, _BLOCK))](gate_up, output, INNER=inner, BLOCK=_BLOCK, num_warps=4)
    return output


@triton.jit
def _silu_mul(gate_up, output, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """One block of one token."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = dims < INNER
    gate = tl.load(gate_up + row * 2 * INNER + dims, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * INNER + INNER + dims, mask=there, other=0.0).to(tl.float32)
    tl.store(output + row * INNER + dims, (gate * tl.sigmoid(gate) * up).to(output.dtype.element_ty), mask=there)
