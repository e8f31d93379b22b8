"""Brings tensors to the host while their device goes on computing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def to_host(tensor: Tensor) -> Tensor:
    """The tensor on the host, filled once what is queued on its device is done, see `arrival`.

    From a GPU torch takes pinned memory for it, without which the copy would wait. On CPU it is the tensor itself.
    """
    return tensor if tensor.device.type == "cpu" else tensor.to("cpu", non_blocking=True)


def arrival(device: torch.device) -> Callable[[], None]:
    """What waits until all that is queued on the device so far is done, copies to the host among it."""
    if device.type != "cuda":
        return _nothing_to_wait_for
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize


def _nothing_to_wait_for() -> None:
    """What is queued on a CPU is done at once."""
