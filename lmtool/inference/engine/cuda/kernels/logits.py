"""Kernels over rows of logits, each row for itself: masks of constraints, and the log of a sum of exponentials.

Letters: R rows of logits, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MASK_BLOCK = 1024


def apply_masks(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """Make -inf, in the given rows, every id whose bit is 0.

    logits: [R, V], contiguous, changed in place. rows: [n] int64. words: [n, ceil(V / 32)] int32, contiguous: bit
    `i % 32` of word `i // 32` for id i.
    """
    vocabulary = logits.shape[1]
    if len(rows):
        _apply_masks[(len(rows), triton.cdiv(vocabulary, _MASK_BLOCK))](
            logits, rows, words, vocabulary, words.shape[1], BLOCK=_MASK_BLOCK, num_warps=4
        )


@triton.jit(do_not_specialize=["rows", "words"])
def _apply_masks(logits, rows, words, vocabulary, width, BLOCK: tl.constexpr):
    """One block of one row's ids."""
    entry = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = ids < vocabulary
    word = tl.load(words + entry * width + ids // 32, mask=there, other=0)
    closed = ((word >> (ids % 32)) & 1) == 0
    row = tl.load(rows + entry)
    tl.store(logits + row * vocabulary + ids, float("-inf"), mask=there & closed)


_SUM_BLOCK = 4096


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32; torch's own picks its order of summing by the batch.

    logits: [R, V] float32, rows contiguous; NaN where a row holds NaN or plus infinity.
    """
    result = logits.new_empty(len(logits), dtype=torch.float32)
    if len(logits):
        _logsumexp[(len(logits),)](logits, result, logits.stride(0), logits.shape[1], BLOCK=_SUM_BLOCK, num_warps=8)
    return result


@triton.jit
def _logsumexp(logits, result, row_stride, vocabulary, BLOCK: tl.constexpr):
    """One row."""
    row = logits + tl.program_id(0).to(tl.int64) * row_stride
    ids = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        best = tl.maximum(best, tl.load(row + start + ids, mask=start + ids < vocabulary, other=float("-inf")))
    highest = tl.max(best, axis=0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        own = tl.load(row + start + ids, mask=start + ids < vocabulary, other=float("-inf"))
        total += tl.exp(own - highest)
    tl.store(result + tl.program_id(0), highest + tl.log(tl.sum(total, axis=0)))
