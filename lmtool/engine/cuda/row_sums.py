"""Sums over rows of logits whose order does not depend on the batch: on CPU torch's, on a GPU our kernel's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


_NOTHING = -80.0
"""Exponent from which down a term is lost in any sum that has a 1 in it; `exp` is slow where its value is 0."""


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32. logits: [R, V] float32; anything for a row that is no distribution."""
    if logits.device.type == "cpu":
        return _on_cpu(logits)
    return _kernel()(logits.contiguous())


def _on_cpu(logits: Tensor) -> Tensor:
    """What torch.logsumexp does, bit for bit, but a masked row takes no longer than another (there: five times)."""
    highest = logits.amax(dim=-1, keepdim=True)
    weights = (logits - highest).clamp_(min=_NOTHING).exp_()
    return weights.sum(dim=-1).log_().add_(highest.squeeze(-1))


@functools.cache
def _kernel() -> Callable[[Tensor], Tensor]:
    """Ours; torch's, which sums by the batch, where there is no Triton."""
    try:
        from lmtool.engine.cuda.kernels.logsumexp import logsumexp as own
    except ImportError:
        return functools.partial(torch.logsumexp, dim=-1)
    return own
