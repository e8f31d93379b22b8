"""Products with packed weights: torch's numbers, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, silu

from lmtool.engine.cpu.library import GATED, address
from lmtool.engine.cpu.products import interleaved, multiply, pack

SHAPES = [(1, 4), (31, 48), (64, 128), (300, 1024), (97, 260)]
ODD = [(40, 1), (33, 77)]
"""Inputs that do not come in pairs; int8 has none."""
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@pytest.fixture
def kernels(each_build):
    """Of this processor and of lesser ones."""
    return each_build


@pytest.fixture
def layer():
    """Weight, bias and 70 rows of inputs."""

    def make(out, size):
        generator = torch.Generator().manual_seed(out)
        return (
            torch.randn(out, size, generator=generator) * 0.05,
            torch.randn(out, generator=generator),
            torch.randn(70, size, generator=generator),
        )

    return make


CASES = [(shape, dtype) for dtype in DTYPES for shape in SHAPES + (ODD if dtype != torch.int8 else [])]


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_numbers(kernels, layer, shape, dtype):
    """Those of torch's `linear` with weights as they are stored and inputs rounded alike; int8 within 2 %."""
    weight, bias, inputs = layer(*shape)
    rounded = inputs.bfloat16().float() if dtype == torch.bfloat16 and kernels.paired else inputs
    expected = linear(rounded, weight.to(dtype).float() if dtype != torch.int8 else weight, bias)
    error = (multiply(kernels, pack(kernels, weight, bias, dtype), inputs) - expected).abs().max()
    assert error <= (0.02 if dtype == torch.int8 else 1e-5) * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_any_batch(kernels, layer, shape, dtype):
    """A row has the same bits in every batch from 1 row on, wherever it stands, with any number of threads."""
    weight, bias, inputs = layer(*shape)
    packed = pack(kernels, weight, bias, dtype)
    whole = multiply(kernels, packed, inputs)
    for rows in (*range(1, 30), 64):
        assert torch.equal(multiply(kernels, packed, inputs[:rows]), whole[:rows])
        assert torch.equal(multiply(kernels, packed, inputs[70 - rows :]), whole[70 - rows :])
    kernels.use_threads(3)
    assert torch.equal(multiply(kernels, packed, inputs), whole)
    kernels.use_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_rows(kernels, layer, dtype):
    """As many as a step may ever hold: what is kept meanwhile does not grow with them; none at all give none."""
    weight, bias, inputs = layer(40, 64)
    packed = pack(kernels, weight, bias, dtype)
    many = multiply(kernels, packed, inputs.repeat(3000, 1))
    assert torch.equal(many, multiply(kernels, packed, inputs).repeat(3000, 1))
    assert multiply(kernels, packed, inputs[:0]).shape == (0, 40)


def test_int8_is_exact_where_it_can_be(kernels):
    """Whole numbers up to 127 in weights and inputs are multiplied without any loss; a row of zeros gives the bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (40, 64), generator=generator).float()
    inputs = torch.randint(-127, 128, (3, 64), generator=generator).float()
    weight[:, 0] = inputs[:, 0] = 127
    inputs[2] = 0
    packed = pack(kernels, weight, torch.ones(40), torch.int8)
    torch.testing.assert_close(multiply(kernels, packed, inputs), inputs @ weight.t() + 1, rtol=1e-6, atol=0.1)
    assert torch.equal(multiply(kernels, packed, inputs)[2], torch.ones(40))


@pytest.mark.parametrize("inner", [48, 50])
def test_gates(kernels, layer, inner):
    """Gates and what they let through, interleaved: SiLU of the one times the other, padded with zeros."""
    gate, *_ = layer(inner, 64)
    up, _, inputs = layer(inner + 1, 64)
    up = up[:inner]
    packed = pack(kernels, interleaved(kernels, gate, up), None, torch.float32)
    width = packed.outputs // 2
    out, room, steps = torch.empty(70, width), torch.empty(70, 64), torch.empty(70)
    kernels.product(packed.structure, address(inputs), 70, GATED, address(out), width, address(room), address(steps))
    expected = silu(linear(inputs, gate)) * linear(inputs, up)
    torch.testing.assert_close(out[:, :inner], expected, atol=1e-5, rtol=1e-5)
    assert not out[:, inner:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [260, 77])
def test_rows_as_they_were(kernels, layer, dtype, size):
    """Packed weights can be looked up again, as an embedding is."""
    weight, *_ = layer(97, size)
    ids = torch.tensor([0, 96, 31, 32, 0])
    assert torch.equal(pack(kernels, weight, None, dtype).rows(ids), weight[ids].to(dtype).float())


def test_numbers_that_are_none(kernels, layer):
    """What is not a number, or infinite, in a row stays so, and stays in its row."""
    weight, bias, inputs = layer(31, 49)
    inputs[1, 48], inputs[2, 3] = float("nan"), float("inf")
    out = multiply(kernels, pack(kernels, weight, bias, torch.bfloat16), inputs)
    assert out[1].isnan().all()
    assert not out[2].isfinite().any()
    assert out[3:].isfinite().all()
