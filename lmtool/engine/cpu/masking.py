"""Puts constraints' masks onto logits in a CPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmtool.engine.cpu.library import address, kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def forbid_by_kernel(logits: Tensor, rows: Sequence[int], words: Tensor) -> bool:
    """Make -inf, in the given rows, every id whose bit is 0; False, and nothing done, where there are no kernels.

    logits: [R, V] float32, contiguous, changed in place. words: [len(rows), ceil(V / 32)] int32, contiguous, as in
    `sampler.Row.allowed`.
    """
    library = kernels()
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return False
    at = torch.tensor(rows)
    count, width = words.shape
    library.forbid(address(logits), address(at), address(words), count, logits.shape[-1], width)
    return True
