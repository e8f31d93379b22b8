"""Puts packed linear layers into a transformers model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lmtool.engine.linear import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, PackedLinear, packing_pays


def prepare_linears(model: nn.Module, device: torch.device) -> int:
    """Replace the model's linear layers by packed ones where that pays, and free the unpacked weights.

    Returns the fewest rows that a forward pass must have for a row's bits not to depend on the others.
    """
    layers = _linears(model)
    if device.type != "cpu":
        return 1
    if not layers or not packing_pays([_shape(layer) for *_, layer in layers], _weight(layers[0][2]).dtype):
        return PLAIN_MIN_ROWS
    done: dict[int, PackedLinear] = {}
    while layers:  # emptied on the way, so that no more than one layer is in memory twice
        parent, name, layer = layers.pop()
        key = id(layer)
        if key not in done:
            done[key] = PackedLinear(_weight(layer), layer.bias)
        setattr(parent, name, done[key])
    for parameter in model.parameters():  # what is left would keep the whole checkpoint file mapped
        parameter.data = parameter.data.clone()
    return PACKED_MIN_ROWS


def _linears(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear | Conv1D]]:
    """Parent, attribute name and layer, for layers of exactly the two known classes; subclasses may do more."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear | Conv1D) and type(child) in (nn.Linear, Conv1D)
    ]


def _weight(layer: nn.Linear | Conv1D) -> Tensor:
    """[out, in], which Conv1D stores the other way round."""
    weight = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


def _shape(layer: nn.Linear | Conv1D) -> tuple[int, int]:
    out, size = _weight(layer).shape
    return out, size
