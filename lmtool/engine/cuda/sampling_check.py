"""Compiles the sampler's kernels before anything is served, and compares what they draw with torch's operators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from lmtool.engine.cuda.sampling import sample_rows
from lmtool.engine.sampling_result import SamplingResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmtool.engine.sampler import Row

_logger = logging.getLogger(__name__)

_TOLERANCE = 1e-3
"""Nats between two logprobs; those of torch's operators are sums in float32, too."""


def kernels_work(
    rows: Sequence[Row],
    by_stages: Callable[[Tensor, Sequence[Row]], SamplingResult],
    device: torch.device,
    vocabulary: int,
    dtype: torch.dtype,
) -> bool:
    """Whether kernels give for these rows what `by_stages` gives; a warning says why not. Waits for the device.

    vocabulary, dtype: of the logits that will be sampled from.
    """
    generator = torch.Generator(device).manual_seed(1)
    logits = torch.randn(len(rows) + 1, vocabulary, generator=generator, device=device).mul_(2).to(dtype)
    try:
        for own in (logits[:-1], logits[1:]):  # one of them aligned, perhaps, the other not: two compilations
            tokens, sampled = sample_rows(own, rows, list(range(len(rows))))
            found = SamplingResult(tokens, None, [], sampled).read()
            expected = by_stages(own.to(torch.float32, copy=True), rows).read()
            for ours, theirs in zip(found, expected, strict=True):
                if ours is None or theirs is None or ours.token != theirs.token:
                    _logger.warning("tokens are sampled without Triton, and slower: it drew %s for %s", ours, theirs)
                    return False
                if abs(ours.logprob - theirs.logprob) > _TOLERANCE:
                    _logger.warning("tokens are sampled without Triton, and slower: %s is not %s", ours, theirs)
                    return False
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # noqa: BLE001  # whatever a compiler raises, there is another way
        _logger.warning("tokens are sampled without Triton, and slower: %s", problem)
        return False
    return True
