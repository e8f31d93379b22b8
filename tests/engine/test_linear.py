"""Packed linear layers give torch's numbers, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lmtool.engine.linear import PACKED_MIN_ROWS, PackedLinear, packing_works, row_invariant


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_works_where_it_does(dtype, monkeypatch):
    """What the check says is what a layer does: right numbers to the dtype's own rounding, wrong ones are found."""
    weight, inputs = torch.randn(48, 64).to(dtype), torch.randn(5, 64).to(dtype)
    try:
        error = (PackedLinear(weight, None)(inputs).float() - inputs.float() @ weight.float().t()).abs().max()
    except RuntimeError:
        assert not packing_works(dtype)
        return
    assert packing_works(dtype) == (error < 0.1)
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: right(self, rows) * 1.01)
    assert not packing_works(dtype)


@pytest.mark.parametrize("shape", [(64, 48), (300, 1024), (128, 3072)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed(shape, dtype):
    """Same numbers as torch's `linear`, and the same bits for a row in any batch of two or more."""
    if not packing_works(dtype):
        pytest.skip(f"oneDNN packs no {dtype} here")
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(shape, generator=generator) * 0.05, torch.randn(shape[0], generator=generator)
    layer = PackedLinear(weight.to(dtype), bias.to(dtype))
    inputs = torch.randn(2, 3, shape[1], generator=generator).to(dtype)
    torch.testing.assert_close(layer(inputs), nn.functional.linear(inputs, weight.to(dtype), bias.to(dtype)))
    assert row_invariant(layer, shape[1], dtype, fewest=PACKED_MIN_ROWS)


def test_a_product_that_depends_on_its_batch():
    """The measurement finds it."""
    assert not row_invariant(lambda rows: rows * len(rows), 8, torch.float32)
