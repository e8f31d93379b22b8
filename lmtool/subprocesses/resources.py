"""What background work costs everybody else: the priority of its threads, and the memory that it leaves behind."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NICENESS = 10
"""Of threads that compile and read: another thread that wants the same core gets nine tenths of it."""
LARGE = 1 << 20
"""Bytes of a request that leaves so much free memory behind that releasing it is worth some milliseconds."""


def lower_priority() -> None:
    """Lower the priority of the calling thread, and of those that it will start, for good.

    Only Linux has priorities by thread; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def release_memory() -> None:
    """Return free memory to the system, where the C library is glibc; others keep none, or have no way to return it.

    glibc keeps what was freed between pieces that are in use: tokenizing a megabyte of text leaves 120 MB behind, which
    this gives back in 30 ms, without the interpreter lock.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library; TypeError: Windows has no such handle
        return int
    return trim
