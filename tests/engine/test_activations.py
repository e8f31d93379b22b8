"""Activations of ours give torch's numbers, and the same bits wherever a number stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from lmtool.engine.activations import EvenGELUTanh, EvenSiLU, even_activations

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
    even_activations(model, torch.device("cpu"))
    assert [type(child) for child in model.children()] == [EvenSiLU, EvenGELUTanh, nn.ReLU, EvenSiLU]
