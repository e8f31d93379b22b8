"""Matrix products in which a row's result does not depend on the other rows, and which are fast on CPU.

Two ways are known. Packed: oneDNN with weights laid out in advance, through torch's own private operators; a row has
the same bits in any batch of at least two rows; faster from a few rows on, but some 40 microseconds a call. Plain:
torch's `linear`; on some processors a row has the same bits in any batch of at least sixteen rows, on others never.
Which holds here is measured at load.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_logger = logging.getLogger(__name__)

PACKED_MIN_ROWS = 2
PLAIN_MIN_ROWS = 16

_PACK_FROM_WEIGHTS = 4_000_000
"""Weights in all linear layers from which packing pays."""

_PACK_ROWS = 32
"""The number of rows that the packed layout is made for; any other number works."""

_MEASURED_WEIGHTS = 4_000_000
"""Layers with more weights are not measured, to keep loading fast: they behave like the smaller ones."""

_ROWS = (16, 17, 20, 23, 31, 33, 48, 65, 100, 129, 192, 255)
"""Batches that are compared with one of 256 rows; packed products are also tried with fewer."""


class PackedLinear(nn.Module):
    """A linear layer with oneDNN's own weight layout; stands in for `nn.Linear` and transformers' `Conv1D`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in]; not kept. bias: [out]."""
        super().__init__()
        self.in_features = weight.shape[1]
        self.out_features = weight.shape[0]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)  # noqa: SLF001
        self._bias = None if bias is None else bias.detach()

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            inputs, self._packed, self._bias, "none", [], ""
        )
        return output


def packing_pays(shapes: Sequence[tuple[int, int]], dtype: torch.dtype) -> bool:
    """Whether layers of these shapes (out, in) are better packed: large enough for speed, or plain ones not invariant.

    False where packing does not work here.
    """
    if not packing_works(dtype):
        return False
    if sum(out * size for out, size in shapes) >= _PACK_FROM_WEIGHTS:
        return True
    measured = {(out, size) for out, size in shapes if out * size <= _MEASURED_WEIGHTS}
    return not all(row_invariant(_plain(out, size, dtype), size, dtype) for out, size in measured)


def row_invariant(product: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype, fewest: int = 16) -> bool:
    """Whether a row's product [.., size] to [.., out] has the same bits in batches of `fewest` to 256 rows."""
    inputs = torch.randn(256, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = product(inputs)
    few = range(fewest, _ROWS[0])
    return all(torch.equal(product(inputs[:rows]), whole[:rows]) for rows in (*few, *_ROWS))


def _plain(out: int, size: int, dtype: torch.dtype) -> nn.Linear:
    """A layer of that shape to measure with."""
    layer = nn.Linear(size, out, bias=False, dtype=dtype)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return layer


def packing_works(dtype: torch.dtype) -> bool:
    """Whether the private operators exist in this torch, run on this processor, and give the right numbers."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    weight = torch.linspace(-1, 1, 96 * 64).view(96, 64).to(dtype)
    inputs = torch.linspace(-1, 1, 3 * 64).view(3, 64).to(dtype)
    try:
        result = PackedLinear(weight, None)(inputs)
    except (AttributeError, RuntimeError, TypeError) as problem:
        _logger.info("oneDNN-packed linear layers are not available here (%s); using plain ones", problem)
        return False
    expected = torch.nn.functional.linear(inputs.float(), weight.float())
    absolute, relative = (1e-4, 1e-5) if dtype == torch.float32 else (1e-2, 2**-8)  # a bfloat16 has 8 bits
    return torch.allclose(result.float(), expected, atol=absolute, rtol=relative)


def product_name(min_rows: int) -> str:
    """What computes products of at least so many rows, as `ModelInfo.kernels` tells it."""
    return "oneDNN" if min_rows == PACKED_MIN_ROWS else "torch"
