"""Memory for the weights of one model, side by side, so that most of it lies in large pages.

A processor reads weights from end to end in every step. In pages of 4 KiB one core of an EPYC got 15 GB/s, in pages of
2 MiB 26. Small tensors of their own get none: they are shorter than such a page, or reuse memory that has its pages.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.inference.engine.cpu.library import Kernels

_PIECE = 64 << 20
"""Bytes taken at once: more than any C library keeps for later. What is not written to takes no memory."""

_LINE = 64
"""Bytes of a cache line, where every tensor begins."""


class WeightMemory:
    """Hands out tensors; their memory goes back with the last of each piece."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._free = torch.empty(0, dtype=torch.uint8)

    def empty(self, *size: int, dtype: torch.dtype) -> Tensor:
        """A tensor of that size with any content."""
        used = math.prod(size) * dtype.itemsize
        room = -(-used // _LINE) * _LINE
        if room > len(self._free):
            self._free = torch.empty(max(room, _PIECE), dtype=torch.uint8)
            self._kernels.prefer_large_pages(self._free.data_ptr(), len(self._free))  # before anything is written there
        own, self._free = self._free[:used], self._free[room:]
        return own.view(dtype).view(size)
