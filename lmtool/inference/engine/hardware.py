"""Hardware of this machine, and the choices that follow for a model: its dtype, and the kernels for its weights.

Measured with 100 M weights, decoded tokens per CPU-second for 1, 8 and 32 streams (AMD Zen 5, one thread):

| | float32 | bfloat16 |
|---|---|---|
| C kernels (Llama) | 75 / 419 / 698 | 135 / 731 / 1,163 |
| `LlamaForward`, oneDNN (Llama without a C compiler) | 58 / 309 / 453 | 89 / 492 / 722 |
| `LlamaForward`, torch's `linear` (no packed layout either) | 13 / 110 / 185 | 39 / 314 / 516 |
| transformers' modules, oneDNN (Gemma 2) | 40 / 257 / 310 | 62 / 376 / 492 |

So where the processor multiplies bfloat16, that is the faster dtype in every row, and the C kernels are the fastest in
either dtype: these two questions decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import ResourceError
from lmtool.inference.engine.batch_invariant import PACKED_MIN_ROWS, PLAIN_MIN_ROWS, packing_works, product_name
from lmtool.inference.engine.cpu.library import Kernels, find_compiler, find_kernels, kernels
from lmtool.inference.engine.cpu.products import INT4_DTYPE
from lmtool.inference.engine.decoder import GPT2, LLAMA_FAMILY

if TYPE_CHECKING:
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.decoder import DecoderConfig

_SMALL = 50_000_000
"""Parameters below which a float32 checkpoint stays float32 on CPU under `--dtype auto`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware that a model runs on, where it matters."""

    device: str
    """`cpu` or `cuda`."""
    bfloat16: bool
    """True if the processor multiplies bfloat16 matrices in hardware, a row with the same bits in any batch."""
    kernels: bool
    """True if the C kernels run, and are enabled."""


def this_machine(device: torch.device) -> Machine:
    """The hardware of `device`; compiles the C kernels if that was not done before."""
    if device.type != "cpu":
        return Machine(device.type, computes_bfloat16(), kernels=False)
    library = kernels()
    bfloat16 = computes_bfloat16() and (library is not None or packing_works(torch.bfloat16))
    return Machine("cpu", bfloat16 or (library is not None and library.paired), library is not None)


def choose_dtype(setting: str, stored: torch.dtype | None, checkpoint_bytes: int, machine: Machine) -> torch.dtype:
    """The dtype that a model is loaded in.

    setting: see `EngineConfig.dtype`. stored: the checkpoint's; None counts as float32. checkpoint_bytes: 0 where it is
    not known.
    """
    if setting != "auto":
        named: torch.dtype = getattr(torch, setting)
        return named
    stored = stored or torch.float32
    if machine.device == "cuda":
        return torch.bfloat16 if stored == torch.float32 else stored
    if stored == torch.float32 and checkpoint_bytes and checkpoint_bytes / 4 < _SMALL:
        return torch.float32
    return torch.bfloat16 if machine.bfloat16 else torch.float32


def kernel_dtype(
    dtype: torch.dtype, quantize: str | None, config: DecoderConfig | None, machine: Machine
) -> torch.dtype | None:
    """Storage dtype of a model's weights in the C kernels, if loaded in `dtype`; None if they do not compute the model.

    config: of a model that our own passes compute; None for any other, which torch's operators compute.
    """
    if config is None or config.head_dim % 2 or not machine.kernels:
        return None
    if quantize is not None:
        return {"int8": torch.int8, "int4": INT4_DTYPE}[quantize]
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


def check_formats(config: EngineConfig, device: torch.device) -> None:
    """Raises `ResourceError` for number formats that are asked for and that this device does not compute."""
    if device.type == "cuda":
        if config.quantize in {"int8", "int4"}:
            raise ResourceError(
                f"--quantize {config.quantize} is for CPUs; the model would run on {device}",
                "on a GPU weights are quantized with --quantize fp8; or choose --device cpu",
            )
        if "fp8" in {config.quantize, config.kv_cache_dtype} and torch.cuda.get_device_capability(device) < (8, 0):
            raise ResourceError(
                f"fp8 needs a GPU of compute capability 8.0 or later; {_gpu(device.index or 0)}",
                "leave --quantize fp8 and --kv-cache-dtype fp8 out",
            )
        return
    if config.quantize == "fp8":
        raise ResourceError(
            "--quantize fp8 is for GPUs; the model would run on the CPU",
            "on a CPU weights are quantized with --quantize int8 or int4",
        )
    if config.kv_cache_dtype != "auto":
        raise ResourceError(
            f"--kv-cache-dtype {config.kv_cache_dtype} is for GPUs; the model would run on the CPU",
            "leave it out: on a CPU keys and values have 16 bits, beside float32 weights 32",
        )


def computes_bfloat16() -> bool:
    """True if this processor multiplies bfloat16 matrices in hardware, according to torch (AVX512-BF16 or AMX)."""
    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test() for test in tests if test is not None)


def describe_devices() -> list[tuple[str, str]]:
    """Name and description of the library, the processor and each GPU, as torch sees them."""
    import transformers

    lines = [
        ("torch", f"{torch.__version__} with transformers {transformers.__version__}"),
        ("cpu", f"{torch.backends.cpu.get_cpu_capability()}, {_bfloat16()}, {torch.get_num_threads()} threads"),
    ]
    if not torch.cuda.is_available():
        return [*lines, ("gpu", "none that torch can use; models run on the CPU")]
    return lines + [(f"cuda:{index}", _gpu(index)) for index in range(torch.cuda.device_count())]


def describe_kernels() -> str:
    """The C kernels and the compiler that made them, now or earlier. Raises `ResourceError` where there are none."""
    library = find_kernels()
    if isinstance(library, ResourceError):
        raise library
    return f"{library.name}, compiled with {find_compiler()}"


def describe_auto_dtype() -> str:
    """The dtype that `--dtype auto` chooses on this CPU, and what computes it."""
    machine = this_machine(torch.device("cpu"))
    dtype = choose_dtype("auto", torch.bfloat16, 0, machine)
    library, plain = find_kernels(), product_name(PACKED_MIN_ROWS if packing_works(dtype) else PLAIN_MIN_ROWS)
    kernel = f"by {plain}"
    if not isinstance(library, ResourceError):
        known = ", ".join([GPT2, *LLAMA_FAMILY.values()]).replace("LMHeadModel", "").replace("ForCausalLM", "")
        kernel = f"by {library.name}; architectures other than {known} by {plain}"
    name = str(dtype).removeprefix("torch.")
    small = "" if dtype == torch.float32 else "; float32 checkpoints below 50 M weights stay float32"
    return f"auto is {name} {kernel}{small}"


def _bfloat16() -> str:
    library = find_kernels()
    there = computes_bfloat16() or (isinstance(library, Kernels) and library.paired)
    return "bfloat16 in hardware" if there else "no bfloat16 in hardware"


def _gpu(index: int) -> str:
    free, total = torch.cuda.mem_get_info(index)
    return f"{torch.cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
