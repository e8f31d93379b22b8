"""Puts constraints' masks onto logits that lie on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmtool.engine.cuda.step_rows import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def forbid_by_kernel(logits: Tensor, rows: Sequence[int], words: Tensor) -> bool:
    """Make -inf, in the given rows, every id whose bit is 0; False, and nothing done, where there is no Triton.

    logits: [R, V] float32, contiguous, changed in place. words: [len(rows), ceil(V / 32)] int32 on CPU, as in
    `sampler.Row.allowed`.
    """
    try:
        from lmtool.engine.cuda.kernels.forbid import forbid
    except ImportError:
        return False
    device = logits.device
    forbid(logits, to_device(rows, torch.int64, device), to_device(words.contiguous(), torch.int32, device))
    return True
