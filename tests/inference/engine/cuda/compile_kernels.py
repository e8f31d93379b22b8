"""Compiles every kernel at the shapes of known models for NVIDIA GPUs that are not there, and prints what each needs.

    python tests/inference/engine/cuda/compile_kernels.py    # all: minutes on two cores, seconds when cached
    python tests/inference/engine/cuda/compile_kernels.py --model llama-8b --target 90 --dtype bfloat16

One line of JSON a kernel: registers and bytes of stack of a thread, shared memory of a block, instructions of tensor
cores, and how its loads are. test_interpreted.py runs this in an environment with Triton, and checks the numbers. A
stand-in for Triton's driver says which GPU to compile for, and launches only compile; Triton keeps what it compiled in
its cache. `--specialisations` counts instead how many compilations random batches need.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lmtool.inference.engine.cuda.kernels import attention as attention_kernels
from lmtool.inference.engine.cuda.kernels import elementwise as row_kernels
from lmtool.inference.engine.cuda.kernels import products as product_kernels
from lmtool.inference.engine.cuda.kernels import tiles as launch_module
from lmtool.inference.engine.cuda.kernels.elementwise import add_norm, kv_write, place_rows, rotate_and_store, silu_mul
from lmtool.inference.engine.cuda.kernels.products import gated_row_product, row_product
from lmtool.inference.engine.cuda.kernels.sampling import (
    all_logprobs,
    apply_masks,
    count_tokens,
    logsumexp,
    sample_rows,
)
from lmtool.inference.engine.cuda.step_rows import TABLE_STEP
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS

SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block may use, by compute capability (8.0, 9.0, 10.0)."""
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Model:
    """A model's shapes."""

    heads: int
    kv_heads: int
    size: int
    hidden: int
    inner: int
    vocabulary: int
    bias: bool = False
    head_norm: bool = False
    window: int | None = None
    softcap: float | None = None
    fused: bool = True
    """Whether our own forward pass computes it; else transformers' modules do."""


MODELS = {
    "llama-8b": Model(32, 8, 128, 4096, 14336, 128256),
    "llama-1b": Model(32, 8, 64, 2048, 8192, 128256),
    "qwen2-0.5b": Model(14, 2, 64, 896, 4864, 151936, bias=True),
    "qwen3-8b": Model(32, 8, 128, 4096, 12288, 151936, head_norm=True),
    "gemma2-9b": Model(16, 8, 256, 3584, 14336, 256000, window=4096, softcap=50.0, fused=False),
    "gemma-512": Model(8, 2, 512, 2560, 10240, 262144, fused=False),
    "gpt2": Model(12, 12, 64, 768, 3072, 50257, fused=False),
}


class Absent:
    """A driver for a GPU that is not there."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability  # Triton keeps what it compiled for each device apart

    def get_current_stream(self, device):
        return 0


launch = jit.JITFunction.run
compiled: dict[str, tuple[str, object]] = {}
"""What was compiled since it was last cleared: hash to the function's name and the kernel."""


def compile_only(self, *arguments, grid, warmup, **settings):
    """Compile as for a launch."""
    kernel = launch(self, *arguments, grid=grid, warmup=True, **settings)
    compiled[kernel.hash] = (self.__name__, kernel)
    return kernel


def aim(capability: int) -> None:
    """Compile for this GPU from now on."""
    driver.set_active(Absent(capability))
    jit.JITFunction.run = compile_only
    attention_kernels.shared_memory = lambda _: SHARED[capability]
    row_kernels.converts_e4m3 = lambda _: capability >= 89
    launch_module.starts_early = lambda _: capability >= 90


def attention(model: Model, dtype: torch.dtype, rows: int, width: int, scales=None) -> None:
    """Both attention kernels, the first with each of its choices of tiles."""
    stored = torch.uint8 if scales is not None else dtype
    keys, values = torch.empty(2, 64, 16, model.kv_heads, model.size, dtype=stored)
    query = torch.empty(rows, model.heads, model.size, dtype=dtype)
    table = torch.zeros(rows, width, dtype=torch.int32)
    asked = {"scaling": 0.1, "window": model.window, "softcap": model.softcap, "scales": scales}
    lengths = torch.zeros(rows, dtype=torch.int32)
    for tiles in attention_kernels.tile_choices(query, values):
        attention_kernels.decode_attention(query, keys, values, table, lengths, tiles=tiles, **asked)
    tiles = torch.zeros(rows, 4, dtype=torch.int32)
    attention_kernels.prefill_attention(query, keys, values, table, tiles, torch.empty_like(query), **asked)


def stores(model: Model, dtype: torch.dtype, rows: int, packed: torch.Tensor, scales=None) -> None:
    """The kernels that write keys and values. packed: int64, where positions and slots come from."""
    stored = torch.uint8 if scales is not None else dtype
    keys, values = torch.empty(2, 64, 16, model.kv_heads, model.size, dtype=stored)
    _, positions, slots, _ = torch.split(packed, [rows, rows, rows, len(packed) - 3 * rows])
    if not model.fused:
        key = torch.empty(model.kv_heads, rows, model.size, dtype=dtype)
        kv_write(key.transpose(0, 1), torch.empty_like(key).transpose(0, 1), keys, values, slots, scales)
        return
    projected = torch.empty(rows, model.heads + 2 * model.kv_heads, model.size, dtype=dtype)
    query, angles = projected[:, : model.heads].contiguous(), torch.empty(64, model.size // 2)
    norm = torch.empty(model.heads + model.kv_heads, model.size, dtype=dtype) if model.head_norm else None
    rotate_and_store(projected, query, keys, values, positions, slots, angles, angles, norm, 1e-5, scales)


def products(model: Model, dtype: torch.dtype, rows: int, *, narrow: bool) -> None:
    """The product that leads to queries, keys and values. narrow: with weights of eight bits."""
    outputs = (model.heads + 2 * model.kv_heads) * model.size
    weight = torch.empty(outputs, model.hidden, dtype=torch.uint8 if narrow else dtype)
    bias = torch.empty(outputs, dtype=dtype) if model.bias else None
    scale = torch.empty(outputs) if narrow else None
    inputs = torch.empty(rows, model.hidden, dtype=dtype)
    product_kernels.fixed_matmul(inputs, weight, bias, scale=scale)
    if not narrow:
        row_product(inputs[:1], weight, bias)
        gated_row_product(inputs[:1], weight, bias)
    else:
        row_kernels.rounded_rows(inputs)


def elementwise(model: Model, dtype: torch.dtype, rows: int) -> None:
    """Norms and gates."""
    wide = torch.empty(rows, model.hidden, dtype=dtype)
    add_norm(wide, None, wide[0].clone(), 1e-5)
    add_norm(wide, wide.clone(), wide[0].clone(), 1e-5)
    silu_mul(torch.empty(rows, 2 * model.inner, dtype=dtype))


def logits(model: Model, rows: int) -> None:
    """Kernels over logits."""
    own = torch.empty(rows, model.vocabulary)
    logsumexp(own)
    words = torch.zeros(1, -(-model.vocabulary // 32), dtype=torch.int32)
    apply_masks(own, torch.zeros(1, dtype=torch.int64), words)
    table = torch.zeros(rows, 16, dtype=torch.int64)
    for cuts in (False, True):
        samples = sample_rows(own, table, words, cuts=cuts)
    all_logprobs(own, table, words, samples.shapes, torch.zeros(1, dtype=torch.int64))
    count_tokens(table, samples.results)


def rows_of_a_graph(rows: int, width: int) -> None:
    """What a captured step of so many rows does first, half of them single queries."""
    numbers, tokens = ([torch.zeros(rows, dtype=kind) for _ in range(3)] for kind in (torch.int32, torch.int64))
    lengths = torch.zeros(-(-rows // 2), dtype=torch.int32)
    table = torch.zeros(rows, width, dtype=torch.int32)
    place_rows(*numbers, table, *tokens, lengths, table[: len(lengths)], BLOCK_TOKENS)


def everything(model: Model, dtype: torch.dtype, rows: int, width: int) -> None:
    """All kernels of a step of so many rows."""
    scales = torch.ones(2, model.kv_heads)
    packed = torch.zeros(3 * rows + 1, dtype=torch.int64)
    rows_of_a_graph(rows, -(-width // TABLE_STEP) * TABLE_STEP)
    for own in (None, scales) if dtype != torch.float32 else (None,):
        attention(model, dtype, rows, width, own)
        stores(model, dtype, rows, packed, own)
    if model.fused:
        elementwise(model, dtype, rows)
        products(model, dtype, rows, narrow=False)
        if dtype != torch.float32:
            products(model, dtype, rows, narrow=True)
    logits(model, rows)


TENSOR_CORES = r"wgmma\.mma_async|\bmma\.sync|tcgen05\.mma"
LOADS_16 = r"cp\.async\.c[ag]\.shared\.global [^;]*, 0x10|ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64"
LOADS = r"cp\.async\.c[ag]\.shared\.global|ld\.global"


def needs(name: str, kernel) -> dict[str, object]:
    """What a compiled kernel needs of a GPU."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        words = [str(tool), "--dump-resource-usage", file.name]
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    registers, stack, local = (int(re.findall(rf"{word}:(\d+)", said)[0]) for word in ("REG", "STACK", "LOCAL"))
    ptx = kernel.asm["ptx"]
    return {
        "kernel": name,
        "warps": kernel.metadata.num_warps,
        "stages": kernel.metadata.num_stages,
        "registers": registers,
        "stack": max(stack, local),
        "shared": kernel.metadata.shared,
        "tensor_cores": len(re.findall(TENSOR_CORES, ptx)),
        "loads": len(re.findall(LOADS, ptx)),
        "loads_16": len(re.findall(LOADS_16, ptx)),
    }


def report(job: tuple[int, str, str]) -> list[dict[str, object]]:
    """The kernels of one model, in one dtype, for one GPU: with few rows and with many."""
    capability, name, dtype = job
    aim(capability)
    compiled.clear()
    for rows in (3, 300):
        everything(MODELS[name], getattr(torch, dtype), rows, 512)
    found = {"target": capability, "model": name, "dtype": dtype}
    return [found | needs(*entry) for entry in compiled.values()]


def specialisations(rounds: int) -> dict[str, int]:
    """How many compilations each kernel needs for steps of random sizes, up to 256 rows."""
    aim(90)
    model, chosen = Model(6, 2, 64, 256, 512, 1000), random.Random(0)
    for rows in (1, 2, *(chosen.randrange(1, 257) for _ in range(rounds))):
        everything(model, torch.bfloat16, rows, chosen.randrange(1, 300))
        products(model, torch.bfloat16, 128 + rows, narrow=False)
    names = [name for name, _ in compiled.values()]
    return {name: names.count(name) for name in sorted(names)}


def main() -> None:
    """Compile, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=int, action="append", choices=SHARED)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--specialisations", type=int, default=0, metavar="N", help="count those of N random steps")
    given = parser.parse_args()
    if given.specialisations:
        sys.stdout.write(json.dumps(specialisations(given.specialisations)) + "\n")
        return
    jobs = list(itertools.product(given.target or SHARED, given.model or MODELS, given.dtype or DTYPES))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for rows in pool.map(report, jobs):
            sys.stdout.writelines(json.dumps(row) + "\n" for row in rows)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
