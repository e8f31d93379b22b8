"""Activations that give a number the same bits wherever it stands in a tensor.

torch's kernels for SiLU and tanh-GELU take another path for the last few numbers of a tensor, or of a thread's part
of it, than for the rest; which numbers those are depends on the size of the batch. `exp` and `tanh` do not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN


class EvenSiLU(nn.Module):
    """x times the logistic function of x, computed in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape and dtype, the same out."""
        wide = inputs.float()
        return (wide / wide.neg().exp_().add_(1)).to(inputs.dtype)


class EvenGELUTanh(nn.Module):
    """The tanh approximation of GELU (arXiv:1606.08415), computed in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape and dtype, the same out."""
        wide = inputs.float()
        inner = (wide * wide * wide).mul_(0.044715).add_(wide).mul_(math.sqrt(2 / math.pi))
        return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(inputs.dtype)


_EVEN: dict[type[nn.Module], type[nn.Module]] = {
    nn.SiLU: EvenSiLU,
    type(ACT2FN["silu"]): EvenSiLU,
    type(ACT2FN["gelu_pytorch_tanh"]): EvenGELUTanh,
}


def even_activations(model: nn.Module, device: torch.device) -> None:
    """Replace the activations that are known to be uneven on CPU."""
    if device.type != "cpu":
        return
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) in _EVEN:
                setattr(parent, name, _EVEN[type(child)]())
