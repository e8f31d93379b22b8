"""Linear layers on a GPU, and our own kernel for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from lmtool.inference.engine.cuda import products


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
    monkeypatch.setattr(products, "_place_matters", lambda *_: False)
    monkeypatch.setattr(products, "_steady", {})
    inputs, weight, bias = layer
    result = products.product(weight, bias, deterministic=True)(inputs.view(3, 100, 48))
    assert result.shape == (3, 100, 20)
    torch.testing.assert_close(result.view(300, 20), linear(inputs, weight, bias))


@pytest.mark.cuda
def test_deterministic_by_our_own_kernel(layer, device, monkeypatch):
    """Where a row's place matters, our own kernel computes."""
    monkeypatch.setattr(products, "_place_matters", lambda *_: True)
    monkeypatch.setattr(products, "_steady", {})
    inputs, weight, bias = (own.to(device) for own in layer)
    result = products.product(weight, bias, deterministic=True)(inputs)
    torch.testing.assert_close(result, linear(inputs, weight, bias), atol=1e-4, rtol=1e-4)


def test_place_is_measured_with_the_bias(layer, monkeypatch):
    """What is measured at load is the layer as it runs: with a bias the library may take another kernel."""
    _, weight, bias = layer
    biases = []

    def noting(inputs, weight, own):
        biases.append(own)
        return linear(inputs, weight, own)

    monkeypatch.setattr(products, "linear", noting)
    products._place_matters(weight, bias)
    assert len(biases) > 2
    assert all(own is bias for own in biases)


def fixed(monkeypatch, *, steady, equal):
    """As if the library were found steady or not, and our own kernel to have its bits, or the same with both tiles."""
    monkeypatch.setattr(products, "_library_is_steady", lambda *_: (steady, equal))
    monkeypatch.setattr(products, "_steady", {})
    monkeypatch.setattr(products, "_even", {})


@pytest.mark.cuda
def test_beyond_a_product_weights_are_read_once(layer, device, monkeypatch):
    """Where our own kernel has the library's bits, it computes what is more than the library's rows."""
    fixed(monkeypatch, steady=True, equal=True)
    inputs, weight, bias = (own.to(device) for own in layer)
    calls = []

    def noting(inputs, weight, bias):
        calls.append(len(inputs))
        return linear(inputs, weight, bias)

    monkeypatch.setattr(products, "linear", noting)
    run = products.product(weight, bias, deterministic=True)
    for rows in (1, 128, 129, 300):
        torch.testing.assert_close(run(inputs[:rows]), linear(inputs[:rows], weight, bias), atol=1e-4, rtol=1e-4)
    assert calls == [128, 128]


@pytest.mark.cuda
def test_tiles_of_one_kind_where_bits_differ(device, monkeypatch):
    """Large tiles are used only if they give the bits of small ones."""
    from lmtool.inference.engine.cuda.kernels import products as kernels

    fixed(monkeypatch, steady=False, equal=False)
    plain = kernels.fixed_matmul

    def odd(inputs, weight, bias, *, scale=None, tiles=None):
        return plain(inputs, weight, bias, scale=scale, tiles=tiles) + (tiles != kernels.SMALL)

    monkeypatch.setattr(kernels, "fixed_matmul", odd)
    weight, inputs = torch.ones(8, 16, device=device), torch.ones(200, 16, device=device)
    assert bool((products.product(weight, None, deterministic=True)(inputs) == 16).all())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.cuda
def test_fp8(device, dtype, biased):
    """Weights have a scale for each output and the numbers of torch's e4m3; inputs may be rounded, too."""
    generator = torch.Generator().manual_seed(0)
    weight, inputs, bias = (
        torch.randn(*size, generator=generator).to(device, dtype) for size in ((48, 64), (5, 64), (48,))
    )
    weight[3] *= 1000
    weight[4] = 0
    stored, scale = products.rounded_weight(weight)
    exact = stored.view(torch.float8_e4m3fn).float() * scale.unsqueeze(1)
    assert (exact - weight.float()).abs().max(dim=1).values.le(weight.float().abs().amax(dim=1) / 27).all()
    expected = linear(inputs.float(), exact, bias.float() if biased else None)
    result = products.product(weight, bias if biased else None, deterministic=False, fp8=True)(inputs)
    assert result.dtype == dtype
    allowed = 0.05 * expected.std() if products.scaled_mm_works(inputs.device, dtype) else 2e-2
    torch.testing.assert_close(result.float()[:, 4:], expected[:, 4:], atol=float(allowed), rtol=2e-2)


def test_older_devices_do_not_multiply_e4m3():
    """A CPU, and a GPU before compute capability 8.9, take our own kernel."""
    assert not products.scaled_mm_works(torch.device("cpu"), torch.bfloat16)


@pytest.mark.cuda
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (2048, 512), (101, 256)])
def test_rows_do_not_depend_on_each_other(gpu, dtype, shape, biased):
    """With `deterministic`, a row has the same bits alone and in any batch, whichever way was taken."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(gpu, dtype)
    inputs = torch.randn(200, shape[1], generator=torch.Generator().manual_seed(2)).to(gpu, dtype)
    layer = products.product(weight, weight[:, 0].clone() if biased else None, deterministic=True)
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
    from lmtool.inference.engine.cuda.kernels.products import fixed_matmul

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
    from lmtool.inference.engine.cuda.kernels.products import fixed_matmul

    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(*shape, generator=generator).to(device) for shape in ((70, 200), (66, 200)))
    whole = fixed_matmul(inputs, weight, None)
    for row in (0, 1, 63, 64, 69):
        assert torch.equal(fixed_matmul(inputs[row : row + 1], weight, None)[0], whole[row])
    assert torch.equal(fixed_matmul(inputs.flip(0), weight, None), whole.flip(0))


def test_large_tiles(device, dtype):
    """They give the same numbers, and a row the same bits with other rows beside it, whichever programs compute it."""
    from lmtool.inference.engine.cuda.kernels.products import LARGE, fixed_matmul

    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((300, 100), (140, 100)))
    whole = fixed_matmul(inputs, weight, None, tiles=LARGE)
    expected = inputs.double() @ weight.double().T
    tolerance = 1e-4 if dtype == torch.float32 else 0.25
    torch.testing.assert_close(whole.double(), expected, atol=tolerance, rtol=2e-2)
    for rows in (slice(0, 1), slice(0, 129), slice(128, 300), slice(256, 257)):
        assert torch.equal(fixed_matmul(inputs[rows], weight, None, tiles=LARGE), whole[rows])


def test_e4m3_weights(device, dtype):
    """Weights in bytes with a scale for each output are the numbers that they stand for, with both kinds of tiles."""
    from lmtool.inference.engine.cuda.kernels.products import LARGE, SMALL, fixed_matmul

    generator = torch.Generator().manual_seed(0)
    inputs, weight, bias = (
        torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((70, 100), (66, 100), (66,))
    )
    stored, scale = products.rounded_weight(weight)
    exact = stored.view(torch.float8_e4m3fn).double() * scale.double().unsqueeze(1)
    for tiles in (SMALL, LARGE):
        result = fixed_matmul(inputs, stored, bias, scale=scale, tiles=tiles)
        tolerance = 1e-4 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(
            result.double(), linear(inputs.double(), exact, bias.double()), atol=tolerance, rtol=2e-2
        )


def test_rows_are_rounded_as_torch_does(device, dtype):
    """Each row's largest number becomes 448; what is left is torch's e4m3."""
    from lmtool.inference.engine.cuda.kernels.elementwise import rounded_rows

    inputs = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    inputs[1] *= 1e4
    inputs[2] = 0
    stored, scale = rounded_rows(inputs)
    assert scale[:2, 0].tolist() == pytest.approx((inputs[:2].float().abs().amax(dim=1) / 448).tolist())
    expected = (inputs.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(stored, expected.view(torch.uint8))


@pytest.mark.cuda
def test_a_row_alone(device, monkeypatch):
    """It is multiplied by our own kernel on a GPU, whatever its shape; more rows, and on a CPU all, by the library."""
    generator = torch.Generator().manual_seed(1)
    inputs, weight, bias = (torch.randn(*size, generator=generator).to(device) for size in ((2, 48), (20, 48), (20,)))
    ran = []
    monkeypatch.setattr(products, "linear", lambda *given: ran.append(1) or linear(*given))
    for own in (False, True):
        monkeypatch.setattr(products, "computes_rows", lambda _, own=own: own)
        layer = products.product(weight, bias, deterministic=False)
        for rows in (inputs[0], inputs[:1], inputs[1:2].unsqueeze(0), inputs):
            ran.clear()
            torch.testing.assert_close(layer(rows), linear(rows, weight, bias), atol=1e-5, rtol=1e-5)
            assert bool(ran) == (not own or rows is inputs)
