"""Linear layers on a GPU: the library's own, or, for `--deterministic`, ones whose rows do not depend on each other.

cuBLAS picks a kernel, and with it the order of summing, by the number of rows. Always given the same number of rows it
always picks the same one; whether a row's bits then depend on its place or its neighbours is measured at load, and
where they do, our own kernel takes over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

_logger = logging.getLogger(__name__)

Product: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer: [.., in] to [.., out]."""

FIXED_ROWS = 128
"""Rows of every product in `--deterministic`: reading the weights takes longer than this many rows' arithmetic."""


def make_cublas_deterministic() -> None:
    """Make cuBLAS give the same bits in each run. Call before the first product on the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def product(weight: Tensor, bias: Tensor | None, *, deterministic: bool) -> Product:
    """The layer with this weight [out, in] and bias [out]. deterministic: a row has the same bits in any batch."""
    if not deterministic:
        return partial(linear, weight=weight, bias=bias)
    if _place_matters(weight):
        from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul

        return _flattened(partial(fixed_matmul, weight=weight, bias=bias))
    return _flattened(partial(fixed_rows, weight=weight, bias=bias))


def fixed_rows(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear`, [M, out], in products of exactly `FIXED_ROWS` rows. inputs: [M, in]."""
    rows = len(inputs)
    padded = pad(inputs, (0, 0, 0, -rows % FIXED_ROWS))
    return torch.cat([linear(part, weight, bias) for part in torch.split(padded, FIXED_ROWS)])[:rows]


def _flattened(fixed: Callable[[Tensor], Tensor]) -> Product:
    def run(inputs: Tensor) -> Tensor:
        flat = fixed(inputs.reshape(-1, inputs.shape[-1]))
        return flat.view(*inputs.shape[:-1], -1)

    return run


def _place_matters(weight: Tensor) -> bool:
    """Whether a row's bits depend on where it stands, or on what stands beside it."""
    inputs = torch.randn(FIXED_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    whole = linear(inputs, weight)
    moved = (torch.equal(linear(inputs.roll(by, 0), weight), whole.roll(by, 0)) for by in (1, 8, 37, 64))
    alone = torch.zeros_like(inputs)
    alone[0] = inputs[5]
    if all(moved) and torch.equal(linear(alone, weight)[0], whole[5]):
        return False
    _logger.info("cuBLAS rows of a %d x %d product depend on their place; using our own kernel", *weight.shape)
    return True
