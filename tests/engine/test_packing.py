"""A model's linear layers are replaced by packed ones where that pays, and only those that do nothing else."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmtool.engine.linear import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, PackedLinear, row_invariant
from lmtool.engine.packing import prepare_linears

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
    invariant = all(row_invariant(layer, layer.in_features, torch.float32) for layer in model)
    assert prepare_linears(model, CPU) == (PLAIN_MIN_ROWS if invariant else PACKED_MIN_ROWS)
    assert all(type(layer) is (nn.Linear if invariant else PackedLinear) for layer in model)


def test_another_dtype():
    """What oneDNN does not pack here stays plain."""
    model = nn.Sequential(nn.Linear(2048, 2048, dtype=torch.float16))
    assert prepare_linears(model, CPU) == PLAIN_MIN_ROWS
    assert type(model[0]) is nn.Linear
