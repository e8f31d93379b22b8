"""Tells a step that failed from a device that is lost for good."""

from __future__ import annotations

import torch

from lmtool.core.errors import ConnectError, DeviceLostError, LmtoolError, OutOfMemoryError, ServerError

_NO_MEMORY = "can't allocate memory"
"""What torch says of a CPU's memory, in a plain `RuntimeError`."""


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether a step failed for want of memory."""
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(problem, RuntimeError) and _NO_MEMORY in str(problem)


def is_lost(device: torch.device, problem: BaseException) -> bool:
    """Whether nothing can be computed on a device after this problem.

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
    """Why the streams of a failed step end."""
    if isinstance(problem, DeviceLostError):
        return ConnectError(f"{problem.message}; the server ends", "send the request again when it is back")
    if is_out_of_memory(problem):
        return OutOfMemoryError("the device ran out of memory in this step", "try again, or with fewer tokens")
    return ServerError(f"the model failed in this step: {type(problem).__name__}", "see the server's log")
