"""Makes impossible what a constraint forbids: bits of a mask onto rows of logits.

Letters: R rows of logits, V vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def forbid(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """Make -inf, in the given rows, every id whose bit is 0.

    logits: [R, V], contiguous, changed in place. rows: [n] int64. words: [n, ceil(V / 32)] int32, contiguous: bit
    `i % 32` of word `i // 32` for id i.
    """
    vocabulary = logits.shape[1]
    if len(rows):
        _forbid[(len(rows), triton.cdiv(vocabulary, _BLOCK))](
            logits, rows, words, vocabulary, words.shape[1], BLOCK=_BLOCK, num_warps=4
        )


@triton.jit
def _forbid(logits, rows, words, vocabulary, width, BLOCK: tl.constexpr):
    """One block of one row's ids."""
    entry = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = ids < vocabulary
    word = tl.load(words + entry * width + ids // 32, mask=there, other=0)
    closed = ((word >> (ids % 32)) & 1) == 0
    row = tl.load(rows + entry)
    tl.store(logits + row * vocabulary + ids, float("-inf"), mask=there & closed)
