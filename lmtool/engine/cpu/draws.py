"""Draws tokens from logits in a CPU's memory, a row at a time: what is looked at twice is still near then.

32 rows of 128,256 logits, two threads: 4.5 ms, with torch's operators 19.6; held to a schema 2.9 in place of 22.9.
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

_LEAST_TEMPERATURE = 1e-5

_DRAW = np.dtype(
    [
        *((name, np.int64) for name in ("allowed", "barred", "bars", "row", "token", "forbid")),
        ("uniform", np.float64),
        *((name, np.float32) for name in ("temperature", "highest", "normaliser")),
    ],
    align=True,
)
"""`Draw` of drawing.c."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What is wanted from one row."""

    row: int
    """Which of the batch."""
    target: int | None = None
    """The id to score; None: one is drawn."""
    temperature: float = 0.0
    """At most 0: the first likeliest id."""
    uniform: float = 0.0
    """In [0, 1): how far into the cumulative sum of probabilities."""
    allowed: Tensor | None = None
    """[ceil(V / 32)] int32, the ids that may be drawn, see `sampler.Row.allowed`."""
    barred: Collection[int] = ()
    """Ids, each once, that may not be drawn; they count as if they could."""
    forbid: bool = False
    """Whether the logits of all other ids must become -inf, for others to see."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What n rows gave."""

    tokens: Tensor
    """[n] int64, of the vocabulary also for a row that is no distribution."""
    highest: Tensor
    """[n] float32, the highest logit; not finite for a row that is no distribution, or bars every id there is."""
    normaliser: Tensor
    """[n] float32, log of the sum of all exponentials."""


def can_draw(logits: Tensor) -> bool:
    """Whether there are kernels that draw from these logits."""
    library = kernels() if logits.device.type == "cpu" else None
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return False
    return logits.shape[-1] <= library.widest_draw


def draw_by_kernel(logits: Tensor, wanted: Sequence[Draw]) -> Drawn:
    """Draw from rows that follow no rule but these, where `can_draw` says so.

    logits: [R, V] float32; where a mask forbids, what is left in them is -inf or as it was.
    """
    library = kernels()
    assert library is not None, "asked before"
    vocabulary = logits.shape[-1]
    table = np.zeros(len(wanted), _DRAW)
    table["allowed"] = [address(draw.allowed) or 0 for draw in wanted]
    bars = np.array([token for draw in wanted for token in draw.barred], np.int64)
    if len(bars):  # seldom, and a hundredth of a step of one stream to write down
        counts = np.array([len(draw.barred) for draw in wanted])
        table["bars"] = counts
        table["barred"] = bars.ctypes.data + bars.itemsize * (np.cumsum(counts) - counts)
    table["row"] = [draw.row for draw in wanted]
    table["token"] = [-1 if draw.target is None else draw.target for draw in wanted]
    table["forbid"] = [draw.forbid for draw in wanted]
    table["uniform"] = [draw.uniform for draw in wanted]
    table["temperature"] = [
        max(draw.temperature, _LEAST_TEMPERATURE) if draw.temperature > 0 else 0.0 for draw in wanted
    ]
    library.use_threads(torch.get_num_threads())
    library.draw(address(logits), vocabulary, table.ctypes.data, len(wanted))
    tokens, highest, normaliser = (torch.from_numpy(table[name].copy()) for name in ("token", "highest", "normaliser"))
    return Drawn(tokens, highest, normaliser)
