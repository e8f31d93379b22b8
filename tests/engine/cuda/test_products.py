"""Linear layers on a GPU, and our own kernel for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from lmtool.engine.cuda import products


@pytest.fixture
def layer():
    """Inputs of more rows than a product has, a weight and a bias."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*size, generator=generator) for size in ((300, 48), (20, 48), (20,)))


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 300])
def test_fixed_rows_equal_linear(layer, rows):
    """Cut and padded to products of one size, the result is that of `linear`."""
    inputs, weight, bias = layer
    result = products.fixed_rows(inputs[:rows], weight, bias)
    torch.testing.assert_close(result, linear(inputs[:rows], weight, bias))


def test_without_deterministic_it_is_linear(layer):
    """Nothing stands between the layer and the library."""
    inputs, weight, bias = layer
    assert torch.equal(products.product(weight, bias, deterministic=False)(inputs), linear(inputs, weight, bias))


def test_deterministic_by_rows_of_one_number(layer, monkeypatch):
    """Where a row's place does not matter, the library computes; more dimensions are kept."""
    monkeypatch.setattr(products, "_place_matters", lambda _: False)
    inputs, weight, bias = layer
    result = products.product(weight, bias, deterministic=True)(inputs.view(3, 100, 48))
    assert result.shape == (3, 100, 20)
    torch.testing.assert_close(result.view(300, 20), linear(inputs, weight, bias))


@pytest.mark.cuda
def test_deterministic_by_our_own_kernel(layer, device, monkeypatch):
    """Where a row's place matters, our own kernel computes."""
    monkeypatch.setattr(products, "_place_matters", lambda _: True)
    inputs, weight, bias = (own.to(device) for own in layer)
    result = products.product(weight, bias, deterministic=True)(inputs)
    torch.testing.assert_close(result, linear(inputs, weight, bias), atol=1e-4, rtol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(64, 32), (2048, 512), (101, 256)])
def test_rows_do_not_depend_on_each_other(gpu, dtype, shape):
    """With `deterministic`, a row has the same bits alone and in any batch, whichever way was taken."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(gpu, dtype)
    inputs = torch.randn(200, shape[1], generator=torch.Generator().manual_seed(2)).to(gpu, dtype)
    layer = products.product(weight, None, deterministic=True)
    whole = layer(inputs)
    for rows in (1, 2, 7, 64, 128, 129):
        assert torch.equal(layer(inputs[:rows]), whole[:rows])
        assert torch.equal(layer(inputs[-rows:]), whole[-rows:])


def test_settle(monkeypatch):
    """The library is told to give the same bits in each run; what a user set already stays."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    products.make_cublas_deterministic()
    import os

    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("rows", "size", "outputs"), [(0, 64, 64), (1, 32, 101), (65, 100, 64), (3, 768, 130)])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_linear(device, dtype, rows, size, outputs, biased):
    """It is `linear`."""
    from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul

    generator = torch.Generator().manual_seed(size)
    inputs, weight, bias = (
        torch.randn(*shape, generator=generator).to(device, dtype)
        for shape in ((rows, size), (outputs, size), (outputs,))
    )
    result = fixed_matmul(inputs, weight, bias if biased else None)
    expected = inputs.double() @ weight.double().T + (bias.double() if biased else 0)
    tolerance = 1e-4 if dtype == torch.float32 else 0.25
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=2e-2)


def test_rows_do_not_depend_on_each_other_fixed_matmul(device):
    """A row has the same bits alone and anywhere in any batch."""
    from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul

    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(*shape, generator=generator).to(device) for shape in ((70, 200), (66, 200)))
    whole = fixed_matmul(inputs, weight, None)
    for row in (0, 1, 63, 64, 69):
        assert torch.equal(fixed_matmul(inputs[row : row + 1], weight, None)[0], whole[row])
    assert torch.equal(fixed_matmul(inputs.flip(0), weight, None), whole.flip(0))
