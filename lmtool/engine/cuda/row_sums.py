"""Sums over rows of logits whose order does not depend on the batch: on CPU torch's own, on a GPU our kernel's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32. logits: [R, V] float32; anything for a row that is no distribution."""
    if logits.device.type == "cpu":
        return torch.logsumexp(logits, dim=-1)
    return _kernel()(logits.contiguous())


@functools.cache
def _kernel() -> Callable[[Tensor], Tensor]:
    """Ours; torch's, which sums by the batch, where there is no Triton."""
    try:
        from lmtool.engine.cuda.kernels.logsumexp import logsumexp as own
    except ImportError:
        return functools.partial(torch.logsumexp, dim=-1)
    return own
