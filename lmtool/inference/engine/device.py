"""A device's memory, copies to and from it that do not wait for it, and errors that show its loss.

Indexing with a list waits for a GPU: the list is copied from memory that is not pinned.
"""

from __future__ import annotations

import gc
import logging
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from lmtool.core.errors import ConnectError, DeviceLostError, LmtoolError, OutOfMemoryError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from torch import Tensor


_logger = logging.getLogger(__name__)


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


_ACTIVATIONS = 0.15
"""Share of the memory free after loading that is left to the activations of a step."""


def cache_room(device: torch.device, reserved: int) -> int:
    """Bytes of a GPU that keys and values may have at most, once all that is unused was given back.

    reserved: bytes that CUDA graphs will need; at most a quarter is left for them, which steps can do without. What
    torch keeps in pieces counts as free, but for steps alone: keys and values are too large for a piece.
    """
    release()
    free, _ = torch.cuda.mem_get_info(device)
    pieces = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = int((1 - _ACTIVATIONS) * (free + pieces))
    return min(free, room - min(reserved, room // 4))


def release() -> None:
    """Free what only cycles of Python refer to, and return to the GPU what torch keeps for later; nothing without one.

    Where the GPU is lost, its memory is as well: that is logged.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own CUDA functions are untyped
        return
    gc.collect()
    try:
        torch.cuda.empty_cache()
    except RuntimeError as problem:
        _logger.warning("memory of the GPU is not given back: %s", problem)


@contextmanager
def forgetting_frames() -> Iterator[None]:
    """Let no exception that leaves this block keep the local variables, such as weights, of the functions it ended.

    A caller that stores the exception, as the reason why a model cannot be had, would keep the weights with it.
    """
    try:
        yield
    except BaseException as problem:
        chain: BaseException | None = problem
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__cause__ or chain.__context__
        release()
        raise


_NO_MEMORY = "can't allocate memory"
"""Torch's message about a CPU's memory, in a plain `RuntimeError`."""


def is_out_of_memory(problem: BaseException) -> bool:
    """True if a step failed for want of memory."""
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(problem, RuntimeError) and _NO_MEMORY in str(problem)


def is_lost(device: torch.device, problem: BaseException) -> bool:
    """True if nothing can be computed on a device after this problem.

    Some errors of CUDA, such as an illegal access or a GPU that has fallen off its bus, make every later call of the
    process fail: so one is made.
    """
    if device.type != "cuda" or is_out_of_memory(problem):
        return False
    try:
        torch.zeros(1, device=device).add_(1).item()
        torch.cuda.synchronize(device)
    except RuntimeError as answer:
        return not is_out_of_memory(answer)
    return False


def raise_if_lost(device: torch.device, problem: BaseException) -> None:
    """Raise `DeviceLostError` where this problem of a step shows that its device is lost."""
    if is_lost(device, problem):
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        hint = "start the server again; if that fails too, see nvidia-smi and dmesg"
        raise DeviceLostError(f"the device {device} is lost: {reason}", hint) from problem


def step_error(problem: BaseException) -> LmtoolError:
    """Error of the streams of a failed step."""
    if isinstance(problem, DeviceLostError):
        return ConnectError(f"{problem.message}; the server ends", "send the request again when it is back")
    if is_out_of_memory(problem):
        return OutOfMemoryError("the device ran out of memory in this step", "try again, or with fewer tokens")
    return ServerError(f"the model failed in this step: {type(problem).__name__}", "see the server's log")
