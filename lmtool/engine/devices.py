"""What torch can compute on here, in words."""

from __future__ import annotations

import torch
import transformers

from lmtool.engine.cpu.compiler import find_compiler
from lmtool.engine.cpu.library import kernels
from lmtool.engine.weights import computes_bfloat16


def describe() -> list[tuple[str, str]]:
    """Name and description of the library, the processor and each GPU, as torch sees them."""
    found = [
        ("torch", f"{torch.__version__} with transformers {transformers.__version__}"),
        ("cpu", f"{torch.backends.cpu.get_cpu_capability()}, {_bfloat16()}, {torch.get_num_threads()} threads"),
    ]
    if not torch.cuda.is_available():
        return [*found, ("gpu", "none that torch can use; models run on the CPU")]
    return found + [(f"cuda:{index}", _gpu(index)) for index in range(torch.cuda.device_count())]


def kernel_compiler() -> str | None:
    """The compiler that made the kernels for this processor, now or earlier; None where there are none."""
    return None if kernels() is None else find_compiler()


def _bfloat16() -> str:
    return "bfloat16 in hardware" if computes_bfloat16() else "no bfloat16 in hardware"


def _gpu(index: int) -> str:
    free, total = torch.cuda.mem_get_info(index)
    return f"{torch.cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
