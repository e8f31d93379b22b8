"""Reads long requests in other processes: half a megabyte of JSON would stop all streams for 30 ms."""

from __future__ import annotations

import asyncio
import atexit
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary

from lmtool.core.errors import RequestError, ServerError
from lmtool.net.subprocesses.process import LONG, CrashError, OutOfBand, Pool, TimeOverError
from lmtool.net.subprocesses.resources import LARGE, release_memory
from lmtool.net.subprocesses.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", str, bytes, str | bytes)
R = TypeVar("R")

SECONDS = 60.0
"""Timeout of reading one request: it takes a second, or ten where streams take all cores (`NICENESS`)."""
_PROCESSES = 2
_RELEASE_SECONDS = 1.0


def is_long(data: str | bytes) -> bool:
    """True if reading it would delay other streams noticeably."""
    return len(data) >= LONG


async def run_in_subprocess(read: Callable[[T], R], data: T) -> R:
    """Call `read` with a text or bytes in another process; of the calls that wait, those with less data go first.

    read: can be pickled, and so can its result and errors. Raises `RequestError` or `ServerError` where the process
    does not answer.
    """
    try:
        return await asyncio.wrap_future(
            _queue.put(len(data), partial(_pool.call, SECONDS, read, cast("T", OutOfBand(data))))
        )
    except TimeOverError:
        raise RequestError(f"reading the request takes more than {SECONDS:g} s", "send a shorter one") from None
    except CrashError as problem:
        raise ServerError(f"the process that reads long requests failed: {problem}", "send it again") from None
    finally:
        if len(data) >= LARGE:
            _release_later(asyncio.get_running_loop())


_pool = Pool(_PROCESSES)
_queue = WorkQueue(_PROCESSES, "lmtool-reading")
atexit.register(_pool.close)

_releasing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = WeakKeyDictionary()


def _release_later(loop: asyncio.AbstractEventLoop) -> None:
    """Return the memory that large requests leave behind, once there are no more of them."""
    if loop in _releasing:
        _releasing[loop].cancel()
    _releasing[loop] = loop.call_later(_RELEASE_SECONDS, _release, loop)


def _release(loop: asyncio.AbstractEventLoop) -> None:
    del _releasing[loop]
    _queue.put(0, _release_memory)


def _release_memory() -> None:
    _pool.end_idle()
    release_memory()
