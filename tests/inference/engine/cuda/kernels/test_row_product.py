"""Products of one row: what the library gives, for sizes that fill no program, with and without bias and gate."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, silu

pytestmark = pytest.mark.cuda

SIZES = [(1, 8), (7, 100), (32, 2048), (10, 2049), (6, 5000)]
"""Outputs and inputs."""


def layer(device, dtype, outputs, size):
    """A row, a weight and a bias."""
    generator = torch.Generator().manual_seed(outputs)
    row = torch.randn(1, size, generator=generator)
    weight, bias = torch.randn(outputs, size, generator=generator), torch.randn(outputs, generator=generator)
    return [own.to(device, dtype) for own in (row, weight * size**-0.5, bias)]


def tolerance(dtype):
    """Of numbers around 1."""
    return {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}


@pytest.mark.parametrize(("outputs", "size"), SIZES)
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_library(device, dtype, outputs, size, biased):
    """Whatever the number of outputs and inputs."""
    from lmtool.inference.engine.cuda.kernels.products import row_product

    row, weight, bias = layer(device, dtype, outputs, size)
    found = row_product(row, weight, bias if biased else None)
    expected = linear(row.float(), weight.float(), bias.float() if biased else None)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    torch.testing.assert_close(found.float(), expected, **tolerance(dtype))


@pytest.mark.parametrize(("outputs", "size"), SIZES)
@pytest.mark.parametrize("biased", [False, True])
def test_gate(device, dtype, outputs, size, biased):
    """The first half of the outputs lets by the second, as if both had been rounded in between."""
    from lmtool.inference.engine.cuda.kernels.products import gated_row_product

    row, weight, bias = layer(device, dtype, 2 * outputs, size)
    found = gated_row_product(row, weight, bias if biased else None)
    gate, up = linear(row.float(), weight.float(), bias.float() if biased else None).to(dtype).float().chunk(2, dim=1)
    torch.testing.assert_close(found.float(), silu(gate) * up, **tolerance(dtype))
