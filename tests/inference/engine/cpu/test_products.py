"""Products with packed weights: torch's numbers, the same bits in any batch."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, silu

from lmtool.inference.engine.cpu.library import GATED, address
from lmtool.inference.engine.cpu.products import BLOCK_TYPES, interleaved, multiply, pack, to_int8_blocks

SHAPES = [(1, 4), (31, 48), (64, 128), (300, 1024), (97, 260)]
ODD = [(40, 1), (33, 77)]
"""Inputs that do not come in pairs, nor in groups."""
DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int4]
LOSS = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.int8: 0.02, torch.int4: 0.02}
"""Share of the largest result by which one may be off."""


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


CASES = [(shape, dtype) for dtype in DTYPES for shape in SHAPES + ODD]


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_numbers(kernels, layer, shape, dtype):
    """Those of torch's `linear` with weights as they are stored and inputs rounded alike; int8 and int4 within 2 %."""
    weight, bias, inputs = layer(*shape)
    rounded = inputs.bfloat16().float() if dtype == torch.bfloat16 and kernels.paired else inputs
    packed = pack(kernels, weight, bias, dtype)
    stored = unpacked(kernels, packed) if dtype in {torch.int8, torch.int4} else weight.to(dtype)
    expected = linear(rounded, stored.float(), bias)
    error = (multiply(kernels, packed, inputs) - expected).abs().max()
    assert error <= LOSS[dtype] * max(1.0, float(expected.abs().max()))


def unpacked(kernels, packed):
    """Weights [out, in] as they are stored."""
    return packed.rows(kernels, torch.arange(packed.outputs))


@given(
    out=st.integers(1, 150),
    size=st.integers(1, 330),
    rows=st.integers(1, 70),
    start=st.integers(0, 69),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape(kernels, layer, out, size, rows, start, dtype, biased):
    """Of whatever shape, a row has the same bits alone, among any others, and wherever it stands."""
    weight, bias, inputs = layer(out, size)
    packed = pack(kernels, weight, bias if biased else None, dtype)
    crowd = multiply(kernels, packed, inputs[:rows])
    assert crowd.isfinite().all()
    row = start % rows
    assert torch.equal(multiply(kernels, packed, inputs[row : row + 1])[0], crowd[row])
    assert torch.equal(multiply(kernels, packed, inputs.roll(7, 0))[(row + 7) % 70], crowd[row])


def test_int4_is_exact_where_it_can_be(kernels):
    """Weights that are -8 to 7 times a float16, and inputs that are whole numbers up to 127, lose nothing.

    A row of zeros gives the bias, and so do weights that are 0.
    """
    generator = torch.Generator().manual_seed(0)
    scales = torch.rand(40, 3, 1, generator=generator).half().float()
    weight = torch.randint(-8, 8, (40, 3, 32), generator=generator).float()
    weight[:, :, 0] = -8
    weight[5] = 0
    weight = (weight * scales).view(40, 96)
    inputs = torch.randint(-127, 128, (4, 96), generator=generator).float()
    inputs[:, ::32] = 127
    inputs[2] = 0
    out = multiply(kernels, pack(kernels, weight, torch.ones(40), torch.int4), inputs)
    torch.testing.assert_close(out, inputs @ weight.t() + 1, rtol=1e-5, atol=1e-3)
    assert torch.equal(out[2], torch.ones(40))
    assert torch.equal(out[:, 5], torch.ones(4))


def test_int4_is_closer_than_the_nearest_quantum(kernels, layer):
    """The error of a group's weights is at most that of the scale that its largest weight alone would choose."""
    weight, *_ = layer(97, 320)
    groups = weight.view(97, 10, 32)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    plain = (groups / largest).round().clamp(-8, 7) * largest
    ours = unpacked(kernels, pack(kernels, weight, None, torch.int4)).view(97, 10, 32)
    error, theirs = ((one - groups).square().sum(-1) for one in (ours, plain))
    assert (error <= theirs * 1.001 + 1e-9).all()
    assert error.sum() < 0.93 * theirs.sum()


def blocks(kind, out, size):
    """Any blocks of a type for weights [out, size] of about 1, one of them 0, and their numbers by the package gguf."""
    generator = np.random.default_rng(out)
    inputs, count = gguf.GGML_QUANT_SIZES[kind]
    if kind.name in {"Q4_0", "Q8_0"}:
        found = gguf.quants.quantize(generator.normal(size=(out, size)).astype(np.float32), kind)
    else:  # nothing but bytes; the last two are the scale of Q6_K, the first four those of the others
        found = generator.integers(0, 256, (out, size // inputs, count), dtype=np.uint8)
        scales = generator.uniform(-1e-3, 1e-3, (out, size // inputs, 2)).astype(np.float16).view(np.uint8)
        found[..., -2:] = scales[..., :2] if kind.name == "Q6_K" else found[..., -2:]
        found[..., :4] = scales if kind.name != "Q6_K" else found[..., :4]
    found = found.reshape(out, size // inputs, count)
    found[0, 1] = 0
    numbers = gguf.quants.dequantize(found.reshape(out, -1), kind)
    return torch.from_numpy(found), torch.from_numpy(numbers)


def rounded_to_bytes(inputs):
    """Inputs [T, in] as they are multiplied by quantized weights: each 32 share a scale. In float64."""
    groups = inputs.view(len(inputs), -1, 32)
    high = groups.abs().amax(-1, keepdim=True)
    most = torch.full_like(high, 127)  # torch divides a number by a tensor as it multiplies with the inverse
    return ((groups * (most / high)).round().double() * (high / most).double()).flatten(1)


BLOCKS = [gguf.GGMLQuantizationType[name] for name in BLOCK_TYPES]


@pytest.mark.parametrize("out", [1, 97, 300])
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_as_they_are(kernels, out, kind):
    """llama.cpp's blocks lose nothing when they are packed; blocks of no weights are 0.

    Products are those of the file's numbers with rounded inputs, whose own float32 is the only loss.
    """
    weight, theirs = blocks(kind, out, 768)
    generator = torch.Generator().manual_seed(out)
    bias = torch.randn(out, generator=generator)
    packed = pack(kernels, weight, bias, torch.float32)
    assert (packed.inputs, packed.outputs) == (768, out)
    assert torch.equal(unpacked(kernels, packed), theirs)
    for rows in (1, 5, 12, 13, 40):
        inputs = torch.randn(rows, 768, generator=generator)
        inputs[:, :32] *= 1000
        rounded, numbers = rounded_to_bytes(inputs), theirs.double()
        found = multiply(kernels, packed, inputs)
        size = rounded.abs() @ numbers.abs().t() + 1
        assert ((found - rounded @ numbers.t() - bias) / size).abs().max() < 1e-6


def check_in_any_batch(kernels, packed, inputs):
    """A row of 70 has the same bits beside any others."""
    whole = multiply(kernels, packed, inputs)
    for rows in (*range(1, 30), 64):
        assert torch.equal(multiply(kernels, packed, inputs[:rows]), whole[:rows])
        assert torch.equal(multiply(kernels, packed, inputs[70 - rows :]), whole[70 - rows :])
    kernels.use_threads(3)
    assert torch.equal(multiply(kernels, packed, inputs), whole)
    kernels.use_threads(1)


@pytest.mark.parametrize("out", [33, 128])
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_in_any_batch(kernels, out, kind):
    """A row has the same bits in every batch from 1 row on, wherever it stands, with any number of threads."""
    check_in_any_batch(kernels, pack(kernels, blocks(kind, out, 1280)[0], None, torch.float32), torch.randn(70, 1280))


@pytest.mark.parametrize("kind", BLOCKS)
def test_inputs_of_blocks_that_are_no_numbers(kernels, kind):
    """What is not a number, or infinite, in a row stays so, and stays in its row; a row of zeros gives the bias."""
    inputs = torch.randn(4, 512)
    inputs[0, 300], inputs[1, 511], inputs[2] = float("nan"), float("inf"), 0
    out = multiply(kernels, pack(kernels, blocks(kind, 40, 512)[0], torch.ones(40), torch.float32), inputs)
    assert out[0].isnan().all()
    assert not out[1].isfinite().any()
    assert torch.equal(out[2], torch.ones(40))
    assert out[3].isfinite().all()


@pytest.mark.parametrize("factor", [1.0, 1e-9, 1e9, 0.0])
def test_blocks_of_bytes(kernels, layer, factor):
    """Made of numbers they are those that packing makes, and llama.cpp's own; of any size they are numbers."""
    weight = layer(97, 320)[0] * factor
    made = to_int8_blocks(weight)
    numbers = unpacked(kernels, pack(kernels, made, None, torch.float32))
    assert torch.equal(numbers, unpacked(kernels, pack(kernels, weight, None, torch.int8)))
    assert numbers.isfinite().all()
    if factor == 1:
        theirs = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0).reshape(made.shape)
        assert (made.numpy() != theirs).mean() < 1e-3  # what lies in the middle is rounded the other way
        assert (numbers - weight).abs().max() < weight.abs().max() / 250


@pytest.mark.parametrize("factor", [1e-30, 1e-4, 3e4, 1e30])
def test_int4_of_any_size(kernels, layer, factor):
    """Weights smaller than a float16 can be are 0, larger ones are the largest that it can be: never no numbers."""
    weight, *_ = layer(33, 64)
    stored = unpacked(kernels, pack(kernels, weight * factor, None, torch.int4))
    assert stored.isfinite().all()
    if factor in {1e-4, 3e4}:
        assert torch.cosine_similarity(stored.flatten(), weight.flatten(), dim=0) > (0.98 if factor > 1 else 0.9)


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_any_batch(kernels, layer, shape, dtype):
    """A row has the same bits in every batch from 1 row on, wherever it stands, with any number of threads."""
    weight, bias, inputs = layer(*shape)
    check_in_any_batch(kernels, pack(kernels, weight, bias, dtype), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_rows(kernels, layer, dtype):
    """As many as a step may ever hold: what is kept meanwhile does not grow with them; none at all give none."""
    weight, bias, inputs = layer(40, 64)
    packed = pack(kernels, weight, bias, dtype)
    many = multiply(kernels, packed, inputs.repeat(3000, 1))
    assert torch.equal(many, multiply(kernels, packed, inputs).repeat(3000, 1))
    assert multiply(kernels, packed, inputs[:0]).shape == (0, 40)


def test_int8_is_exact_where_it_can_be(kernels):
    """Whole numbers up to 127, which each group has, are multiplied without any loss; a row of zeros gives the bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (40, 64), generator=generator).float()
    inputs = torch.randint(-127, 128, (3, 64), generator=generator).float()
    weight[:, ::32] = inputs[:, ::32] = 127
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
    out, room = torch.empty(70, width), torch.empty(70, 64)
    kernels.product(packed.structure, address(inputs), 70, GATED, address(out), width, address(room))
    expected = silu(linear(inputs, gate)) * linear(inputs, up)
    torch.testing.assert_close(out[:, :inner], expected, atol=1e-5, rtol=1e-5)
    assert not out[:, inner:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [260, 77])
def test_rows_as_they_were(kernels, layer, dtype, size):
    """Packed weights can be looked up again, as an embedding is."""
    weight, *_ = layer(97, size)
    ids = torch.tensor([0, 96, 31, 32, 0])
    assert torch.equal(pack(kernels, weight, None, dtype).rows(kernels, ids), weight[ids].to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.int4])
def test_numbers_that_are_none(kernels, layer, dtype):
    """What is not a number, or infinite, in a row stays so, and stays in its row."""
    weight, bias, inputs = layer(31, 49)
    inputs[1, 48], inputs[2, 3] = float("nan"), float("inf")
    out = multiply(kernels, pack(kernels, weight, bias, dtype), inputs)
    assert out[1].isnan().all()
    assert not out[2].isfinite().any()
    assert out[3:].isfinite().all()
