"""How a model is computed on this machine: the dtype that it is loaded in, and what multiplies its weights.

Measured with 100 M weights, decoded tokens per CPU-second for 1, 8 and 32 streams (AMD Zen 5, one thread):

| | float32 | bfloat16 |
|---|---|---|
| C kernels (Llama) | 75 / 419 / 698 | 135 / 731 / 1,163 |
| lean pass, oneDNN (Llama without a C compiler) | 58 / 309 / 453 | 89 / 492 / 722 |
| lean pass, torch's `linear` (no packed layout either) | 13 / 110 / 185 | 39 / 314 / 516 |
| transformers' modules, oneDNN (Gemma 2) | 40 / 257 / 310 | 62 / 376 / 492 |

So where the processor multiplies bfloat16, that is the faster dtype by whatever way, and the C kernels are the fastest
way in either dtype. Nothing else is asked than these two questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmtool.engine.cpu.library import kernels
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from lmtool.engine.cpu.decoder import Shape

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_SMALL = 50_000_000
"""Parameters below which a float32 checkpoint stays float32 on CPU under `--dtype auto`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model is to run on, as far as it decides how."""

    device: str
    """`cpu` or `cuda`."""
    bfloat16: bool
    """Whether the processor multiplies bfloat16 matrices in hardware."""
    kernels: bool
    """Whether the C kernels run, and are wanted."""


def this_machine(device: torch.device) -> Machine:
    """What a model on `device` runs on; compiles the C kernels if that was not done before."""
    return Machine(device.type, computes_bfloat16(), device.type == "cpu" and kernels() is not None)


def choose_dtype(wanted: str, stored: torch.dtype | None, checkpoint_bytes: int, machine: Machine) -> torch.dtype:
    """The dtype that a model is loaded in.

    wanted: see `EngineConfig.dtype`. stored: the checkpoint's; None counts as float32. checkpoint_bytes: 0 where it is
    not known. Raises `ResourceError` for a name that is not known.
    """
    if wanted != "auto":
        if wanted not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ResourceError(f"dtype {wanted!r} is not known; expected auto, {known}", "try --dtype auto")
        return _DTYPES[wanted]
    stored = stored or torch.float32
    if machine.device == "cuda":
        return torch.bfloat16 if stored == torch.float32 else stored
    if stored == torch.float32 and checkpoint_bytes and checkpoint_bytes / 4 < _SMALL:
        return torch.float32
    return torch.bfloat16 if machine.bfloat16 else torch.float32


def choose_packed(
    dtype: torch.dtype, quantize: str | None, shape: Shape | None, machine: Machine
) -> torch.dtype | None:
    """How the C kernels keep the weights of a model that was loaded in `dtype`; None where they do not compute it.

    shape: of a model that they can compute; None for any other, which torch's operators compute.
    """
    if shape is None or not machine.kernels:
        return None
    if quantize == "int8":
        return torch.int8 if shape.quarters else None
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


def computes_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX)."""
    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test() for test in tests if test is not None)
