"""What a process costs others: the priority of its background threads, and memory that it has and does not use."""

from __future__ import annotations

import ctypes
import mmap
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


_MOST_HEAPS = 3
"""Arenas of glibc that the threads of a process share."""
_M_ARENA_MAX = -8
"""glibc's name for that number, in malloc.h."""
_MADV_DONTNEED = 4
"""Linux's advice to take the pages of private memory, which reads as zeros from then on."""


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
    _c_function("malloc_trim", ctypes.c_size_t)(0)


def share_heaps() -> None:
    """Let threads that allocate from now on share few heaps, where the C library is glibc and was told no number.

    glibc gives threads heaps of their own, up to eight for each core, and every heap keeps what it once needed.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and "arena_max" not in os.environ.get("GLIBC_TUNABLES", ""):
        _c_function("mallopt", ctypes.c_int, ctypes.c_int)(_M_ARENA_MAX, _MOST_HEAPS)


def give_back_pages(address: int, size: int) -> None:
    """Return the whole pages within this private memory to the system, on Linux; they read as zeros from then on."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if sys.platform == "linux" and length > 0:
        _c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(first, length, _MADV_DONTNEED)


@cache
def _c_function(name: str, *arguments: type) -> Callable[..., object]:
    """A function of the C library; one that does nothing where there is none."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library; TypeError: Windows has no such handle
        return lambda *_arguments: None
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]  # getattr of a library is Any
