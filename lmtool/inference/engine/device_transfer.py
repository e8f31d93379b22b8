"""Tensors between host and device, and some rows of a tensor, without waiting for the device.

Indexing with a list waits for a GPU: the list is copied from memory that is not pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from torch import Tensor


def to_device(values: Sequence[float] | np.ndarray | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor on the device; on a GPU through pinned memory, without waiting for it."""
    host = torch.as_tensor(values, dtype=dtype)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def overwrite(tensor: Tensor, values: np.ndarray) -> None:
    """Queue the copy of the values to a tensor of the same shape and type; to a GPU's through pinned memory."""
    host = torch.as_tensor(values)
    tensor.copy_(host if tensor.device.type == "cpu" else host.pin_memory(), non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The tensor on the host, filled once what is queued on its device is done, see `arrival`.

    From a GPU torch takes pinned memory for it, without which the copy would wait. On CPU it is the tensor itself.
    """
    return tensor if tensor.device.type == "cpu" else tensor.to("cpu", non_blocking=True)


def arrival(device: torch.device) -> Callable[[], None]:
    """A function that waits until all that is queued on the device now is done, copies to the host included."""
    if device.type != "cuda":
        return lambda: None  # what is queued on a CPU is done at once
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own CUDA classes are untyped
    event.record(torch.cuda.current_stream(device))
    return event.synchronize


def select_rows(tensor: Tensor, rows: list[int]) -> Tensor:
    """These rows, at least one, of a tensor [R, ...]; a view where they are consecutive."""
    if _consecutive(rows):
        return tensor if len(rows) == tensor.shape[0] else tensor[rows[0] : rows[-1] + 1]
    return tensor.index_select(0, to_device(rows, torch.int64, tensor.device))


def put_rows(tensor: Tensor, rows: list[int], values: Tensor) -> None:
    """Overwrite these rows, at least one, of a tensor [R, ...] with `values` [n, ...]."""
    if _consecutive(rows):
        tensor[rows[0] : rows[-1] + 1] = values
    else:
        tensor.index_copy_(0, to_device(rows, torch.int64, tensor.device), values)


def _consecutive(rows: list[int]) -> bool:
    return rows == list(range(rows[0], rows[0] + len(rows)))
