"""Compiles the sampler's kernels before anything is served, and compares what they draw with torch's operators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.sampling_row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Sample: TypeAlias = Callable[[Tensor, Sequence[Row]], Sequence["Sampled | None"]]

_logger = logging.getLogger(__name__)

_TOLERANCE = 1e-3
"""Nats between two logprobs; those of torch's operators are sums in float32, too."""


class Sampled(Protocol):
    """A `SampledToken`, as far as it is compared."""

    @property
    def token(self) -> int:
        """The id."""

    @property
    def logprob(self) -> float:
        """In nats."""


def kernels_work(
    by_kernel: Sample, by_stages: Sample, device: torch.device, vocabulary: int, dtype: torch.dtype
) -> bool:
    """Whether kernels give for rows of several kinds what torch's operators give; a warning says why not.

    vocabulary, dtype: of the logits that will be sampled from. Waits for the device.
    """
    generator = torch.Generator(device).manual_seed(1)
    try:
        for rows in _kinds():
            shape = (len(rows) + 1, vocabulary)
            logits = torch.randn(shape, generator=generator, device=device).mul_(2).to(dtype)
            for own in (logits[:-1], logits[1:]):  # perhaps one is aligned, and the other not: two compilations
                problem = _difference(by_kernel(own, rows), by_stages(own.to(torch.float32, copy=True), rows))
                if problem is not None:
                    _logger.warning("tokens are sampled without Triton, and slower: %s", problem)
                    return False
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # noqa: BLE001  # whatever a compiler raises, there is another way
        _logger.warning("tokens are sampled without Triton, and slower: %s", problem)
        return False
    return True


def _kinds() -> tuple[list[Row], list[Row]]:
    """Rows with all that kernels do, and rows for which fewer of them are launched."""
    mixed: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.1}]
    mixed += [{"presence_penalty": 0.5, "repetition_penalty": 1.5, "logprobs_mode": "processed"}, {"temperature": 0}]
    rows = [
        Row(
            SamplingParams(**{"temperature": 1.0, **params}), top_logprobs=2, seed=seed, known_ids=(1, 2), counts={2: 1}
        )
        for seed, params in enumerate(mixed)
    ]
    return rows, [Row(SamplingParams(temperature=1.0), top_logprobs=1), Row(target=1)]


def _difference(ours: Sequence[Sampled | None], theirs: Sequence[Sampled | None]) -> str | None:
    """How two results differ; None where they are equal but for rounding."""
    for own, other in zip(ours, theirs, strict=True):
        if own is None or other is None or own.token != other.token:
            return f"it drew {own}, not {other}"
        if abs(own.logprob - other.logprob) > _TOLERANCE:
            return f"its logprob of {own.token} is {own.logprob}, not {other.logprob}"
    return None
