"""Compiles every kernel for an NVIDIA GPU of compute capability 9.0, without one; prints each one's shared memory.

Run by test_interpreted.py in an environment with Triton. A stand-in for Triton's driver says which GPU to compile for,
and launches only compile.
"""

from __future__ import annotations

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lmtool.engine.cuda.kernels.decode_attention import decode_attention
from lmtool.engine.cuda.kernels.elementwise import add_norm, silu_mul
from lmtool.engine.cuda.kernels.fixed_matmul import fixed_matmul
from lmtool.engine.cuda.kernels.kv_write import kv_write, rotate_and_store
from lmtool.engine.cuda.kernels.logits import apply_masks, logsumexp
from lmtool.engine.cuda.kernels.prefill_attention import prefill_attention
from lmtool.engine.cuda.kernels.sampling import all_logprobs, count_tokens, sample_rows


class Hopper:
    """A driver for a GPU that is not there."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


shared: dict[str, int] = {}
launch = jit.JITFunction.run


def compile_only(self, *arguments, grid, warmup, **settings):
    """Compile as for a launch."""
    kernel = launch(self, *arguments, grid=grid, warmup=True, **settings)
    shared[self.__name__] = max(shared.get(self.__name__, 0), kernel.metadata.shared)
    return kernel


def attention(size, dtype, window, softcap):
    """Both attention kernels, with eight pages."""
    pages = torch.empty(8, 16, 2, size, dtype=dtype)
    query, table = torch.empty(3, 8, size, dtype=dtype), torch.zeros(3, 6, dtype=torch.int32)
    asked = {"scaling": 0.1, "window": window, "softcap": softcap}
    decode_attention(query, pages, pages, table, torch.zeros(3, dtype=torch.int32), **asked)
    tiles = torch.zeros(2, 4, dtype=torch.int32)
    prefill_attention(query, pages, pages, table, tiles, torch.empty_like(query), **asked)


def others(dtype):
    """The kernels that are no attention."""
    wide, slots = torch.empty(3, 4096, dtype=dtype), torch.zeros(3, dtype=torch.int64)
    add_norm(wide, wide.clone(), wide[0].clone(), 1e-5)
    silu_mul(wide)
    fixed_matmul(wide, wide.clone(), wide[0, :3].clone())
    keys, values = torch.empty(2, 8, 16, 2, 128, dtype=dtype)
    heads = torch.empty(3, 12, 128, dtype=dtype)
    kv_write(heads[:, :2], heads[:, 2:4], keys, values, slots)
    angles = torch.empty(64, 64)
    query = torch.empty(3, 8, 128, dtype=dtype)
    for norm in (None, torch.empty(10, 128, dtype=dtype)):
        rotate_and_store(heads, query, keys, values, slots, slots, angles, angles, norm, 1e-5)


def sampling(logits):
    """The sampler's kernels."""
    table = torch.zeros(len(logits), 16, dtype=torch.int64)
    masks = torch.zeros(1, -(-logits.shape[1] // 32), dtype=torch.int32)
    for cuts in (False, True):
        samples = sample_rows(logits, table, masks, cuts=cuts)
    all_logprobs(logits, table, masks, samples.shapes, torch.zeros(2, dtype=torch.int64))
    count_tokens(table, samples.results)


def main():
    """Compile, then print."""
    driver.set_active(Hopper())
    jit.JITFunction.run = compile_only
    for dtype in (torch.float32, torch.bfloat16):
        attention(128, dtype, None, None)
        others(dtype)
    attention(256, torch.float32, 24, 5.0)
    attention(8, torch.bfloat16, None, None)
    logits = torch.empty(3, 1000)
    logsumexp(logits)
    sampling(logits)
    apply_masks(logits, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 32, dtype=torch.int32))
    sys.stdout.writelines(f"{name} {size}\n" for name, size in shared.items())


main()
