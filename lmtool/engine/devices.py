"""What torch can compute on here, in words."""

from __future__ import annotations

import torch
import transformers

from lmtool.engine.cpu.compiler import find_compiler
from lmtool.engine.cpu.library import find_kernels
from lmtool.engine.lean_config import FAMILIES
from lmtool.engine.linear import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, packing_works, product_name
from lmtool.engine.numerics import choose_dtype, computes_bfloat16, this_machine
from lmtool.errors import ResourceError


def describe() -> list[tuple[str, str]]:
    """Name and description of the library, the processor and each GPU, as torch sees them."""
    found = [
        ("torch", f"{torch.__version__} with transformers {transformers.__version__}"),
        ("cpu", f"{torch.backends.cpu.get_cpu_capability()}, {_bfloat16()}, {torch.get_num_threads()} threads"),
    ]
    if not torch.cuda.is_available():
        return [*found, ("gpu", "none that torch can use; models run on the CPU")]
    return found + [(f"cuda:{index}", _gpu(index)) for index in range(torch.cuda.device_count())]


def describe_kernels() -> str:
    """The C kernels and the compiler that made them, now or earlier. Raises `ResourceError` where there are none."""
    found = find_kernels()
    if isinstance(found, ResourceError):
        raise found
    return f"{found.name}, compiled with {find_compiler()}"


def describe_auto() -> str:
    """What `--dtype auto` means on this CPU, and what computes it."""
    machine = this_machine(torch.device("cpu"))
    dtype = choose_dtype("auto", torch.bfloat16, 0, machine)
    found, plain = find_kernels(), product_name(PACKED_MIN_ROWS if packing_works(dtype) else PLAIN_MIN_ROWS)
    ways = f"by {plain}"
    if not isinstance(found, ResourceError):
        known = ", ".join(["GPT2LMHeadModel", *FAMILIES.values()]).replace("LMHeadModel", "").replace("ForCausalLM", "")
        ways = f"by {found.name}; architectures other than {known} by {plain}"
    name = str(dtype).removeprefix("torch.")
    small = "" if dtype == torch.float32 else "; float32 checkpoints below 50 M weights stay float32"
    return f"auto is {name} {ways}{small}"


def _bfloat16() -> str:
    return "bfloat16 in hardware" if computes_bfloat16() else "no bfloat16 in hardware"


def _gpu(index: int) -> str:
    free, total = torch.cuda.mem_get_info(index)
    return f"{torch.cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
