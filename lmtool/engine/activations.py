"""Activations that give a number the same bits wherever it stands in a tensor.

torch's kernels for SiLU and tanh-GELU take another path for the last few numbers of a tensor, or of a thread's part
of it, than for the rest; which numbers those are depends on the size of the batch. `exp` and `tanh` do not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def even_silu(inputs: Tensor) -> Tensor:
    """SiLU, x times the logistic function of x, computed in float32; any shape and dtype, the same out."""
    wide = inputs.float()
    return (wide / wide.neg().exp_().add_(1)).to(inputs.dtype)


class EvenSiLU(nn.Module):
    """`even_silu` as a module."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape and dtype, the same out."""
        return even_silu(inputs)


class EvenGELUTanh(nn.Module):
    """The tanh approximation of GELU (arXiv:1606.08415), computed in float32."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape and dtype, the same out."""
        wide = inputs.float()
        inner = (wide * wide * wide).mul_(0.044715).add_(wide).mul_(math.sqrt(2 / math.pi))
        return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(inputs.dtype)


def even_activations(model: nn.Module, device: torch.device) -> None:
    """Replace a transformers model's activations that are known to be uneven on CPU."""
    from transformers.activations import ACT2FN

    if device.type != "cpu":
        return
    even: dict[type[nn.Module], type[nn.Module]] = {
        nn.SiLU: EvenSiLU,
        type(ACT2FN["silu"]): EvenSiLU,
        type(ACT2FN["gelu_pytorch_tanh"]): EvenGELUTanh,
    }
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) in even:
                setattr(parent, name, even[type(child)]())
