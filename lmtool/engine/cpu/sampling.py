"""Samples tokens from logits in a CPU's memory by the C kernel, row by row, so that a row stays in the cache.

32 rows of 128,256 logits, two threads: 4.5 ms, with torch's operators 19.6; under a schema 2.9 in place of 22.9. With
top-p, 32 rows of 32,000, one thread: 7 ms in place of 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from lmtool.engine.cpu.library import address, kernels

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

_MIN_TEMPERATURE = 1e-5

_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("allowed", "barred", "bars", "row", "token", "mask_logits", "top_k")),
        ("uniform", np.float64),
        *((name, np.float32) for name in ("temperature", "top_p", "min_p", "highest", "normaliser")),
    ],
    align=True,
)
"""`Row` of sampling.c."""


class KernelRow(NamedTuple):
    """How to sample from one row."""

    row: int
    """Which of the batch."""
    target: int | None = None
    """The id to score; None samples one."""
    temperature: float = 0.0
    """At most 0: the first likeliest id."""
    uniform: float = 0.0
    """In [0, 1): how far into the cumulative sum of probabilities."""
    allowed: Tensor | None = None
    """[ceil(V / 32)] int32, the ids that may be sampled, see `masks`."""
    barred: Collection[int] = ()
    """Ids, each once, that may not be sampled; they count in the normaliser."""
    mask_logits: bool = False
    """Whether logits that the mask forbids must become -inf in the batch."""
    top_k: int = 0
    """Likeliest ids that stay; 0: all."""
    top_p: float = 1.0
    """The likeliest ids stay until they have this share of what top-k leaves; the one that reaches it, too."""
    min_p: float = 0.0
    """Ids less likely than this share of the likeliest one's probability are cut; 0: none."""


@dataclass(frozen=True, slots=True)
class KernelSamples:
    """The samples of n rows."""

    tokens: Tensor
    """[n] int64, of the vocabulary also for a row that is no distribution."""
    highest: Tensor
    """[n] float32, the highest logit; not finite for a row that is no distribution, or bars every id there is."""
    normaliser: Tensor
    """[n] float32, log of the sum of all exponentials."""


def has_kernel(logits: Tensor) -> bool:
    """Whether there is a kernel that samples from these logits."""
    library = kernels() if logits.device.type == "cpu" else None
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return False
    return logits.shape[-1] <= library.max_vocabulary


def sample_by_kernel(logits: Tensor, rows: Sequence[KernelRow]) -> KernelSamples:
    """Sample from these rows of the logits; only where there `has_kernel`.

    logits: [R, V] float32; what a mask forbids is -inf in them afterwards, or as it was.
    """
    library = kernels()
    assert library is not None, "only where `has_kernel`"
    vocabulary = logits.shape[-1]
    table = np.zeros(len(rows), _ROW)
    numbers, targets, temperatures, uniforms, masks, barred, mask_logits, *cuts = zip(*rows, strict=True)
    table["row"] = numbers
    table["token"] = [-1 if target is None else target for target in targets]
    table["uniform"] = uniforms
    table["temperature"] = [max(one, _MIN_TEMPERATURE) if one > 0 else 0.0 for one in temperatures]
    for name, values in zip(("top_k", "top_p", "min_p"), cuts, strict=True):
        table[name] = values
    if any(mask is not None for mask in masks):
        table["allowed"] = [address(mask) or 0 for mask in masks]
        table["mask_logits"] = mask_logits
    bars = np.array([token for own in barred for token in own], np.int64)
    if len(bars):  # seldom, and a hundredth of a step of one stream to write down
        counts = np.array([len(own) for own in barred])
        table["bars"] = counts
        table["barred"] = bars.ctypes.data + bars.itemsize * (np.cumsum(counts) - counts)
    library.use_threads(torch.get_num_threads())
    library.sample(address(logits), vocabulary, table.ctypes.data, len(rows))
    tokens, highest, normaliser = (torch.from_numpy(table[name].copy()) for name in ("token", "highest", "normaliser"))
    return KernelSamples(tokens, highest, normaliser)
