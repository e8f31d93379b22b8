"""Packed linear layers give torch's numbers, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lmtool.engine.linear import PACKED_MIN_ROWS, PackedLinear, row_invariant


@pytest.mark.parametrize("shape", [(64, 48), (300, 1024), (128, 3072)])
def test_packed(shape):
    """Same numbers as torch's `linear`, and the same bits for a row in any batch of two or more."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(shape, generator=generator) * 0.05, torch.randn(shape[0], generator=generator)
    layer = PackedLinear(weight, bias)
    inputs = torch.randn(2, 3, shape[1], generator=generator)
    torch.testing.assert_close(layer(inputs), nn.functional.linear(inputs, weight, bias))
    assert row_invariant(layer, shape[1], torch.float32, fewest=PACKED_MIN_ROWS)


def test_a_product_that_depends_on_its_batch():
    """The measurement finds it."""
    assert not row_invariant(lambda rows: rows * len(rows), 8, torch.float32)
