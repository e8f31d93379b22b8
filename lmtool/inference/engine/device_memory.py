"""A GPU's memory: how much keys and values may have of it, and giving back what torch and Python keep unused."""

from __future__ import annotations

import gc
import logging
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_logger = logging.getLogger(__name__)

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
