"""Some rows of a tensor, taken out and put back without waiting for the device that it lies on.

Indexing with a list waits for a GPU: the list is copied from memory that is not pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmtool.engine.cuda.step_rows import to_device

if TYPE_CHECKING:
    from torch import Tensor


def rows_of(tensor: Tensor, members: list[int]) -> Tensor:
    """These rows, at least one, of a tensor [R, ...]; a part of itself where they follow each other."""
    if _in_a_row(members):
        return tensor if len(members) == tensor.shape[0] else tensor[members[0] : members[-1] + 1]
    return tensor.index_select(0, to_device(members, torch.int64, tensor.device))


def put_rows(tensor: Tensor, members: list[int], values: Tensor) -> None:
    """Overwrite these rows, at least one, of a tensor [R, ...] with `values` [n, ...]."""
    if _in_a_row(members):
        tensor[members[0] : members[-1] + 1] = values
    else:
        tensor.index_copy_(0, to_device(members, torch.int64, tensor.device), values)


def _in_a_row(members: list[int]) -> bool:
    return members == list(range(members[0], members[0] + len(members)))
