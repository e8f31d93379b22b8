"""The logarithm of a sum of exponentials, each row for itself: torch's own picks its order of summing by the batch.

Letters: R rows of logits, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32. logits: [R, V] float32, rows contiguous; NaN where a row holds NaN or plus infinity."""
    result = logits.new_empty(len(logits), dtype=torch.float32)
    if len(logits):
        _logsumexp[(len(logits),)](logits, result, logits.stride(0), logits.shape[1], BLOCK=_BLOCK, num_warps=8)
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
