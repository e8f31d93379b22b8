"""Reads long requests in processes of their own: half a megabyte of JSON would make all streams wait for 30 ms."""

from __future__ import annotations

import asyncio
import atexit
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary

from lmtool.errors import RequestError, ServerError
from lmtool.subprocesses.memory import LARGE, release_memory
from lmtool.subprocesses.pool import LONG, Pool
from lmtool.subprocesses.process import CrashError, TimeOverError
from lmtool.subprocesses.program import OutOfBand
from lmtool.subprocesses.work_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", str, bytes, str | bytes)
R = TypeVar("R")

SECONDS = 60.0
"""What reading one request may take: a second, or ten times that where streams take all cores (`NICENESS`)."""
_MOST = 2
_RELEASE_SECONDS = 1.0


def is_long(given: str | bytes) -> bool:
    """Whether reading it would take so long that others notice."""
    return len(given) >= LONG


async def beside(read: Callable[[T], R], given: T) -> R:
    """What `read` makes of a text or bytes in another process; of those that wait, the shorter ones come first.

    read: can be pickled, and so can what it returns and raises. Raises `RequestError` or `ServerError` where the
    process does not answer.
    """
    try:
        return await asyncio.wrap_future(
            _queue.put(len(given), partial(_pool.call, SECONDS, read, cast("T", OutOfBand(given))))
        )
    except TimeOverError:
        raise RequestError(f"reading the request takes more than {SECONDS:g} s", "send a shorter one") from None
    except CrashError as problem:
        raise ServerError(f"the process that reads long requests failed: {problem}", "send it again") from None
    finally:
        if len(given) >= LARGE:
            _release_later(asyncio.get_running_loop())


_pool = Pool(_MOST)
_queue = WorkQueue(_MOST, "lmtool-reading")
atexit.register(_pool.close)

_releasing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = WeakKeyDictionary()


def _release_later(loop: asyncio.AbstractEventLoop) -> None:
    """Give back what large requests leave behind, once no more of them come."""
    if loop in _releasing:
        _releasing[loop].cancel()
    _releasing[loop] = loop.call_later(_RELEASE_SECONDS, _release, loop)


def _release(loop: asyncio.AbstractEventLoop) -> None:
    del _releasing[loop]
    _queue.put(0, _give_back)


def _give_back() -> None:
    _pool.end_idle()
    release_memory()
