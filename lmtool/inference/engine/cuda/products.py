"""Linear layers on a GPU: the library's own, rounded to eight bits, or ones whose rows do not depend on each other.

For `--deterministic`: cuBLAS picks a kernel, and with it the order of summing, by the number of rows. Always given the
same number of rows it always picks the same one; whether a row's bits then depend on its place or its neighbours is
measured at load, with the bias that the layer has, and where they do, our own kernel takes over. Beyond that number of
rows our own kernel reads the weights once instead of once for every part; it is used where it gives the same bits,
which is measured too.

For `--quantize fp8`: weights are e4m3 with a scale for each output. Where the library multiplies e4m3 (compute
capability 8.9 and later), inputs are rounded with a scale for each row; elsewhere, and with `--deterministic`, our own
kernel multiplies the exact inputs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

_logger = logging.getLogger(__name__)

Product: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer: [.., in] to [.., out]."""

FIXED_ROWS = 128
"""Rows of every product in `--deterministic`: reading the weights takes longer than this many rows' arithmetic."""

E4M3_LARGEST = 448.0
"""The largest number of e4m3."""


def make_cublas_deterministic() -> None:
    """Make cuBLAS give the same bits in each run. Call before the first product on the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def product(weight: Tensor, bias: Tensor | None, *, deterministic: bool, fp8: bool = False) -> Product:
    """The layer with this weight [out, in] and bias [out].

    deterministic: a row has the same bits in any batch. fp8: the weight is rounded to e4m3.
    """
    if fp8:
        return _fp8_product(weight, bias, deterministic=deterministic)
    if not deterministic:
        return LibraryProduct(weight, bias)
    return _flattened(_fixed_product(weight, bias))


class LibraryProduct:
    """The library's product; on a GPU a row alone is multiplied by our own kernel, which is faster."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._own_rows = computes_rows(weight.device)

    def takes_row(self, inputs: Tensor) -> bool:
        """True if our own kernel multiplies these inputs [.., in]."""
        return self._own_rows and inputs.numel() == inputs.shape[-1]

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's outputs [.., out]."""
        if not self.takes_row(inputs):
            return linear(inputs, self.weight, self.bias)
        from lmtool.inference.engine.cuda.kernels.products import row_product

        return row_product(inputs.reshape(1, -1), self.weight, self.bias).view(*inputs.shape[:-1], -1)


def computes_rows(device: torch.device) -> bool:
    """True if our own kernel computes products of one row here."""
    return device.type == "cuda"


def fixed_rows(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear`, [M, out], in products of exactly `FIXED_ROWS` rows. inputs: [M, in]."""
    rows = len(inputs)
    padded = pad(inputs, (0, 0, 0, -rows % FIXED_ROWS))
    if len(padded) == FIXED_ROWS:
        return linear(padded, weight, bias)[:rows]
    return torch.cat([linear(part, weight, bias) for part in torch.split(padded, FIXED_ROWS)])[:rows]


def rounded_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [out, in] as e4m3, in bytes, and its scales [out] float32, which make the largest of each output 448."""
    scale = (weight.abs().amax(dim=1).float() / E4M3_LARGEST).clamp(min=1e-12)
    rounded = (weight / scale.unsqueeze(1)).clamp(-E4M3_LARGEST, E4M3_LARGEST)
    return rounded.to(torch.float8_e4m3fn).view(torch.uint8), scale


def _flattened(fixed: Callable[[Tensor], Tensor]) -> Product:
    def run(inputs: Tensor) -> Tensor:
        flat = fixed(inputs.reshape(-1, inputs.shape[-1]))
        return flat.view(*inputs.shape[:-1], -1)

    return run


_FixedKind: TypeAlias = tuple[torch.device, torch.dtype, torch.Size, bool]
_steady: dict[_FixedKind, tuple[bool, bool]] = {}
"""By device, dtype and shape of the weight, and whether there is a bias: see `_library_is_steady`."""


_even: dict[tuple[torch.dtype, _FixedKind], bool] = {}
"""By the inputs' dtype too: whether our own kernel gives the same bits with small tiles and with large ones."""


def _fixed_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    kind = (weight.device, weight.dtype, weight.shape, bias is not None)
    if kind not in _steady:
        _steady[kind] = _library_is_steady(weight, bias)
    steady, equal = _steady[kind]
    if not steady:
        return _own_product(weight, bias, weight.dtype)
    library = partial(fixed_rows, weight=weight, bias=bias)
    if not equal:
        return library
    from lmtool.inference.engine.cuda.kernels.products import LARGE, fixed_matmul

    own = partial(fixed_matmul, weight=weight, bias=bias, tiles=LARGE)
    return lambda inputs: library(inputs) if len(inputs) <= FIXED_ROWS else own(inputs)


def _own_product(
    weight: Tensor, bias: Tensor | None, dtype: torch.dtype, scale: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """Our own kernel, with small tiles only where large ones have other bits. dtype: of inputs. scale: of e4m3."""
    from lmtool.inference.engine.cuda.kernels.products import LARGE, SMALL, fixed_matmul

    own = partial(fixed_matmul, weight=weight, bias=bias, scale=scale)
    kind = (dtype, (weight.device, weight.dtype, weight.shape, bias is not None))
    if kind not in _even:
        inputs = _trial(weight.shape[1], weight.device, dtype)
        _even[kind] = torch.equal(own(inputs, tiles=SMALL), own(inputs, tiles=LARGE))
    return own if _even[kind] else partial(own, tiles=SMALL)


def _library_is_steady(weight: Tensor, bias: Tensor | None) -> tuple[bool, bool]:
    """True if a row's bits in products of `FIXED_ROWS` rows depend on that row alone, and are our own kernel's."""
    if _place_matters(weight, bias):
        _logger.info("cuBLAS rows of a %d x %d product depend on their place; using our own kernel", *weight.shape)
        return False, False
    try:
        from lmtool.inference.engine.cuda.kernels.products import LARGE, fixed_matmul

        inputs = _trial(weight.shape[1], weight.device, weight.dtype)
        equal = torch.equal(fixed_matmul(inputs, weight, bias, tiles=LARGE), linear(inputs, weight, bias))
    except Exception as problem:  # noqa: BLE001  # whatever Triton raises means: the library alone
        _logger.warning("our own matrix product does not work here, prompts take longer: %s", problem)
        return True, False
    return True, equal


def _place_matters(weight: Tensor, bias: Tensor | None) -> bool:
    """True if a row's bits depend on where it stands, or on what stands beside it, with the bias that the layer has."""
    inputs = _trial(weight.shape[1], weight.device, weight.dtype)
    whole = linear(inputs, weight, bias)
    moved = (torch.equal(linear(inputs.roll(by, 0), weight, bias), whole.roll(by, 0)) for by in (1, 8, 37, 64))
    alone = torch.zeros_like(inputs)
    alone[0] = inputs[5]
    return not (all(moved) and torch.equal(linear(alone, weight, bias)[0], whole[5]))


def _trial(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Random inputs [FIXED_ROWS, size], always the same."""
    return torch.randn(FIXED_ROWS, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def _fp8_product(weight: Tensor, bias: Tensor | None, *, deterministic: bool) -> Product:
    stored, scale = rounded_weight(weight)
    if not deterministic and scaled_mm_works(weight.device, weight.dtype) and not any(n % 16 for n in weight.shape):
        return _flattened(partial(_scaled, weight=stored.view(torch.float8_e4m3fn).t(), scale=scale, bias=bias))
    return _flattened(_own_product(stored, bias, weight.dtype, scale))


def _scaled(inputs: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The library's product [M, out] of rounded rows and a rounded weight [in, out], whose scales are [out]."""
    from lmtool.inference.engine.cuda.kernels.elementwise import rounded_rows

    rows, factors = rounded_rows(inputs.contiguous())
    result: Tensor = torch._scaled_mm(  # noqa: SLF001  # torch's only way to it that every supported version has
        rows.view(torch.float8_e4m3fn), weight, factors, scale.unsqueeze(0),
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    result = result.to(inputs.dtype)  # the library has bfloat16 alone where rows have scales
    return result if bias is None else result + bias


@lru_cache
def scaled_mm_works(device: torch.device, dtype: torch.dtype) -> bool:
    """True if the library multiplies e4m3 here, with a scale for each row of both sides, and rightly."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        return False
    try:
        inputs = _trial(256, device, dtype)[:5]
        weight = _trial(256, device, dtype)
        stored, scale = rounded_weight(weight)
        ours = _scaled(inputs, stored.view(torch.float8_e4m3fn).t(), scale, None).float()
        error = float((ours - inputs.float() @ weight.float().T).square().mean().sqrt())
    except Exception as problem:  # noqa: BLE001  # whatever the library raises means: not here
        _logger.warning("torch does not multiply e4m3 here, our own kernel does: %s", problem)
        return False
    if error <= _E4M3_ERROR * 256**0.5:
        return True
    _logger.warning("torch's product of e4m3 is off by %.3g; our own kernel is used", error)
    return False


_E4M3_ERROR = 0.08
"""Tolerance for a product of two random numbers that are rounded to e4m3: an error of 4 % is usual."""
