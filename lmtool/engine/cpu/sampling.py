"""Samples tokens from logits in a CPU's memory by the C kernel, row by row, so that a row stays in the cache.

32 rows of 128,256 logits, two threads: 4.5 ms, with torch's operators 19.6; under a schema 2.9 in place of 22.9. With
top-p, 32 rows of 32,000, one thread: 7 ms in place of 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class KernelRow:
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
    table["allowed"] = [address(row.allowed) or 0 for row in rows]
    bars = np.array([token for row in rows for token in row.barred], np.int64)
    if len(bars):  # seldom, and a hundredth of a step of one stream to write down
        counts = np.array([len(row.barred) for row in rows])
        table["bars"] = counts
        table["barred"] = bars.ctypes.data + bars.itemsize * (np.cumsum(counts) - counts)
    table["row"] = [row.row for row in rows]
    table["token"] = [-1 if row.target is None else row.target for row in rows]
    table["mask_logits"] = [row.mask_logits for row in rows]
    for name in ("top_k", "top_p", "min_p"):
        table[name] = [getattr(row, name) for row in rows]
    table["uniform"] = [row.uniform for row in rows]
    table["temperature"] = [max(row.temperature, _MIN_TEMPERATURE) if row.temperature > 0 else 0.0 for row in rows]
    library.use_threads(torch.get_num_threads())
    library.sample(address(logits), vocabulary, table.ctypes.data, len(rows))
    tokens, highest, normaliser = (torch.from_numpy(table[name].copy()) for name in ("token", "highest", "normaliser"))
    return KernelSamples(tokens, highest, normaliser)
