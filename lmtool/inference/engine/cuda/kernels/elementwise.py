"""Fused operations on hidden states: residual sum with RMS norm, and the gate of a gated MLP.

Letters: T tokens of the batch, W width of the model, I inner size of the MLP.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmtool.inference.engine.cuda.kernels.launch import launch_settings


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
