"""Layers whose rows do not depend on each other, and the numbers they give."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from lmtool.inference.engine import batch_invariant
from lmtool.inference.engine.batch_invariant import (
    PACKED_MIN_ROWS,
    PLAIN_MIN_ROWS,
    EvenGELUTanh,
    EvenSiLU,
    PackedLinear,
    is_row_invariant,
    packing_works,
    prepare_activations,
    prepare_linears,
)


@pytest.fixture(autouse=True)
def _measured_anew():
    packing_works.cache_clear()
    yield
    packing_works.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_works_where_it_does(dtype, monkeypatch):
    """What the check says is what a layer does: right to the dtype's own rounding, the same in any batch."""
    weight, inputs = torch.randn(48, 64).to(dtype), torch.randn(5, 64).to(dtype)
    try:
        error = (PackedLinear(weight, None)(inputs).float() - inputs.float() @ weight.float().t()).abs().max()
    except RuntimeError:
        assert not packing_works(dtype)
        return
    wide = PackedLinear(torch.randn(128, 3072).to(dtype), None)
    invariant = is_row_invariant(wide, 3072, dtype, PACKED_MIN_ROWS)
    assert packing_works(dtype) == (error < 0.1 and invariant)
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: right(self, rows) * 1.01)
    packing_works.cache_clear()
    assert not packing_works(dtype)


def test_packing_that_depends_on_its_batch_does_not_work(monkeypatch):
    """Another kernel for some number of rows is found, as oneDNN has them for bfloat16 with AMX."""
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: right(self, rows) + 1e-3 * (len(rows) == 48))
    assert not packing_works(torch.float32)


def test_products_that_depend_on_their_batch_are_warned_of(monkeypatch, caplog):
    """Where neither layout gives a row the same bits in any batch, the log says so; else it is silent."""
    monkeypatch.setattr(batch_invariant, "is_row_invariant", lambda *_: True)
    batch_invariant.warn_if_variant(torch.bfloat16)
    assert not caplog.messages
    monkeypatch.setattr(batch_invariant, "is_row_invariant", lambda *_: False)
    batch_invariant.warn_if_variant(torch.bfloat16)
    assert caplog.messages[0].startswith("bfloat16 products on this processor depend on how many streams run")


@pytest.mark.parametrize("shape", [(64, 48), (300, 1024), (128, 3072), (130, 250)])
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
    assert is_row_invariant(layer, shape[1], dtype, fewest=PACKED_MIN_ROWS)


def test_a_product_that_depends_on_its_batch():
    """The measurement finds it."""
    assert not is_row_invariant(lambda rows: rows * len(rows), 8, torch.float32)


CPU = torch.device("cpu")


def test_large_models_are_packed():
    """Both kinds of linear layer are replaced, a shared one once, with their numbers; the old weights are let go."""
    torch.manual_seed(0)
    model = nn.Module()
    model.one = nn.Linear(1024, 2048)
    model.two = Conv1D(1024, 2048)
    model.inner = nn.Sequential(model.one)
    inputs = torch.randn(5, 1024)
    expected = model.two(model.one(inputs))
    assert prepare_linears(model, CPU) == PACKED_MIN_ROWS
    assert model.one is model.inner[0]
    assert not list(model.parameters())
    torch.testing.assert_close(model.two(model.one(inputs)), expected)


def test_subclasses_stay():
    """A class derived from `nn.Linear` may do more than multiply: it is left alone."""

    class Special(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2048, 2048), Special(2048, 2048))
    prepare_linears(model, CPU)
    assert [type(layer) for layer in model] == [PackedLinear, Special]


def test_small_models_stay_plain():
    """Where plain products are invariant from 16 rows on, small models keep them; elsewhere they are packed too."""
    model = nn.Sequential(nn.Linear(64, 172), nn.Linear(172, 64))
    invariant = all(is_row_invariant(layer, layer.in_features, torch.float32) for layer in model)
    assert prepare_linears(model, CPU) == (PLAIN_MIN_ROWS if invariant else PACKED_MIN_ROWS)
    assert all(type(layer) is (nn.Linear if invariant else PackedLinear) for layer in model)


def test_another_dtype():
    """What oneDNN does not pack here stays plain."""
    model = nn.Sequential(nn.Linear(2048, 2048, dtype=torch.float16))
    assert prepare_linears(model, CPU) == PLAIN_MIN_ROWS
    assert type(model[0]) is nn.Linear


PAIRS = [
    (EvenSiLU(), nn.functional.silu),
    (EvenGELUTanh(), lambda inputs: nn.functional.gelu(inputs, approximate="tanh")),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_numbers(ours, theirs, dtype):
    """As torch's, at the extremes too."""
    inputs = torch.tensor([-1e4, -90, -20, -3, -0.1, 0, 0.1, 3, 20, 90, 1e4]).to(dtype)
    torch.testing.assert_close(ours(inputs), theirs(inputs))
    assert ours(inputs).dtype == dtype


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS])
@pytest.mark.parametrize("width", [7, 48, 172])
def test_even(ours, width):
    """A row has the same bits in a batch of any size."""
    inputs = torch.randn(300, width, generator=torch.Generator().manual_seed(0)) * 3
    whole = ours(inputs)
    assert all(torch.equal(ours(inputs[:rows].clone()), whole[:rows]) for rows in range(1, 80))


def test_replaced():
    """The known uneven ones are replaced, others stay."""
    model = nn.Module()
    model.one, model.two, model.three = ACT2FN["silu"], ACT2FN["gelu_pytorch_tanh"], ACT2FN["relu"]
    model.four = nn.SiLU()
    prepare_activations(model, torch.device("cpu"))
    assert [type(child) for child in model.children()] == [EvenSiLU, EvenGELUTanh, nn.ReLU, EvenSiLU]
