"""Batch-invariant layers on CPU: a row's result does not depend on the other rows, and is computed fast.

Matrix products, in two ways. Packed: oneDNN with weights laid out in advance, through torch's own private operators; a
row has the same bits in any batch of at least two rows; faster from a few rows on, but some 40 microseconds a call.
Plain: torch's `linear`; on some processors a row has the same bits in any batch of at least sixteen rows, on others
never. Which holds here is measured at load.

Activations: torch's kernels for SiLU and tanh-GELU take another path for the last few numbers of a tensor, or of a
thread's part of it, than for the rest; which numbers those are depends on the size of the batch. `exp` and `tanh` do
not.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers.pytorch_utils import Conv1D

_logger = logging.getLogger(__name__)

PACKED_MIN_ROWS = 2
PLAIN_MIN_ROWS = 16

_PACK_FROM_WEIGHTS = 4_000_000
"""Weights in all linear layers from which packing pays."""

_PACK_ROWS = 32
"""The number of rows that the packed layout is optimized for; any other number works."""

_PACK_MULTIPLES = (64, 16)
"""Packed weights are padded to multiples of these (outputs, inputs). Without AVX512, oneDNN 3.10 multiplies others by
its reference code, 500 times slower (32 rows by [300, 1024] on a third-generation AMD EPYC: 500 ms, not 0.8)."""

_MEASURED_WEIGHTS = 4_000_000
"""Layers with more weights are not measured, to keep loading fast: they behave like the smaller ones."""

_ROWS = (16, 17, 20, 23, 31, 33, 48, 65, 100, 129, 192, 255)
"""Batches that are compared with one of 256 rows; packed products are also tried with fewer."""


_PROBED_SHAPES = ((300, 1024), (128, 3072))
"""(out, in) of the layers by which packing is judged: kernels are chosen by shape."""


class PackedLinear(nn.Module):
    """A linear layer with oneDNN's own weight layout; stands in for `nn.Linear` and transformers' `Conv1D`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in]; not kept. bias: [out]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        unused, self._unused_inputs = (-n % multiple for n, multiple in zip(weight.shape, _PACK_MULTIPLES, strict=True))
        padded = nn.functional.pad(weight, (0, self._unused_inputs, 0, unused)).contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(padded, _PACK_ROWS)  # noqa: SLF001
        self._bias = None if bias is None else nn.functional.pad(bias.detach(), (0, unused))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        if self._unused_inputs:
            inputs = nn.functional.pad(inputs, (0, self._unused_inputs))
        output: Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            inputs, self._packed, self._bias, "none", [], ""
        )
        return output[..., : self.out_features].contiguous()  # itself where nothing was added


def packing_pays(shapes: Sequence[tuple[int, int]], dtype: torch.dtype) -> bool:
    """True to pack layers of these shapes (out, in): large enough for speed, or plain ones not invariant.

    False where packing does not work here.
    """
    if not packing_works(dtype):
        return False
    if sum(out * size for out, size in shapes) >= _PACK_FROM_WEIGHTS:
        return True
    measured = {(out, size) for out, size in shapes if out * size <= _MEASURED_WEIGHTS}
    return not all(is_row_invariant(_plain(out, size, dtype), size, dtype) for out, size in measured)


def is_row_invariant(product: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype, fewest: int = 16) -> bool:
    """True if a row's product [.., size] to [.., out] has the same bits in batches of `fewest` to 256 rows."""
    inputs = torch.randn(256, size, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(dtype)
    whole = product(inputs)
    few = range(fewest, _ROWS[0])
    return all(torch.equal(product(inputs[:rows]), whole[:rows]) for rows in (*few, *_ROWS))


def _plain(out: int, size: int, dtype: torch.dtype) -> nn.Linear:
    """A random layer of that shape."""
    layer = nn.Linear(size, out, bias=False, dtype=dtype)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return layer


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """True if the private operators exist in this torch, give the right numbers here, and the same in any batch.

    The last does not hold for bfloat16 on processors with AMX: oneDNN 3.10 picks its kernel by the number of rows.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    weight = torch.linspace(-1, 1, 96 * 64, dtype=torch.float32).view(96, 64).to(dtype)
    inputs = torch.linspace(-1, 1, 3 * 64, dtype=torch.float32).view(3, 64).to(dtype)
    try:
        result = PackedLinear(weight, None)(inputs)
    except (AttributeError, RuntimeError, TypeError) as problem:
        _logger.info("oneDNN-packed linear layers are not available here (%s); using plain ones", problem)
        return False
    expected = torch.nn.functional.linear(inputs.float(), weight.float())
    absolute, relative = (1e-4, 1e-5) if dtype == torch.float32 else (1e-2, 2**-8)  # a bfloat16 has 8 bits
    if not torch.allclose(result.float(), expected, atol=absolute, rtol=relative):
        return False
    products = (PackedLinear(_plain(out, size, dtype).weight, None) for out, size in _PROBED_SHAPES)
    return all(is_row_invariant(product, product.in_features, dtype, PACKED_MIN_ROWS) for product in products)


def warn_if_variant(dtype: torch.dtype) -> bool:
    """True if plain products of this dtype depend on the batch, so that streams may as well; that is logged."""
    varies = not all(is_row_invariant(_plain(out, size, dtype), size, dtype) for out, size in _PROBED_SHAPES)
    if varies:
        _logger.warning(
            "%s products on this processor depend on how many streams run: a stream's last digits, and with them a "
            "token, may differ from those it has alone; --dtype float32 avoids it",
            str(dtype).removeprefix("torch."),
        )
    return varies


def product_name(min_rows: int) -> str:
    """Name of the library that computes products padded to `min_rows` rows, for `ModelInfo.kernels`."""
    return "oneDNN" if min_rows == PACKED_MIN_ROWS else "torch"


def prepare_linears(model: nn.Module, device: torch.device) -> int:
    """Replace the model's linear layers by packed ones where that pays, and free the unpacked weights.

    Returns the fewest rows that a forward pass must have for a row's bits not to depend on the others.
    """
    layers = _linears(model)
    if device.type != "cpu":
        return 1
    if not layers or not packing_pays([_shape(layer) for *_, layer in layers], _weight(layers[0][2]).dtype):
        return PLAIN_MIN_ROWS
    packed: dict[int, PackedLinear] = {}
    while layers:  # emptied on the way, so that no more than one layer is in memory twice
        parent, name, layer = layers.pop()
        key = id(layer)
        if key not in packed:
            packed[key] = PackedLinear(_weight(layer), layer.bias)
        setattr(parent, name, packed[key])
    for parameter in model.parameters():  # the others would keep the whole checkpoint file mapped
        parameter.data = parameter.data.clone()
    return PACKED_MIN_ROWS


def has_uneven_layers(model: nn.Module, min_rows: int) -> bool:
    """True if a model has products beside those of its linear layers, whose number of rows nothing pads.

    A mixture of experts gives each expert as many rows as the whole batch sends there. min_rows: of a forward pass.
    """
    from transformers.pytorch_utils import Conv1D

    padded = (nn.Embedding,) if min_rows == PACKED_MIN_ROWS else (nn.Embedding, nn.Linear, Conv1D)
    others = (module for module in model.modules() if not isinstance(module, padded))
    experts = any("expert" in name for name, _ in model.named_modules())
    return experts or any(weight.dim() > 1 for module in others for weight in module.parameters(recurse=False))


def _linears(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear | Conv1D]]:
    """Parent, attribute name and layer, for layers of exactly the two known classes; subclasses may do more."""
    from transformers.pytorch_utils import Conv1D

    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear | Conv1D) and type(child) in (nn.Linear, Conv1D)
    ]


def _weight(layer: nn.Linear | Conv1D) -> Tensor:
    """[out, in], which Conv1D stores the other way round."""
    weight = layer.weight.detach()
    return weight if isinstance(layer, nn.Linear) else weight.t()


def _shape(layer: nn.Linear | Conv1D) -> tuple[int, int]:
    out, size = _weight(layer).shape
    return out, size


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


def prepare_activations(model: nn.Module, device: torch.device) -> None:
    """Replace a transformers model's activations by batch-invariant ones; on CPU only."""
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
