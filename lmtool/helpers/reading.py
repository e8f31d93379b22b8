"""Reads long requests in processes of their own: half a megabyte of JSON would make all streams wait for 30 ms."""

from __future__ import annotations

import asyncio
import atexit
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from lmtool.errors import RequestError, ServerError
from lmtool.helpers.pool import LONG, Pool
from lmtool.helpers.process import CrashError, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", str, bytes, str | bytes)
R = TypeVar("R")

SECONDS = 10.0
"""What reading one request may take."""
_MOST = 2

_pool = Pool(_MOST)
_threads = ThreadPoolExecutor(_MOST, "lmtool-reading")
atexit.register(_pool.close)


async def beside(read: Callable[[T], R], given: T) -> R:
    """What `read` makes of a text or bytes: at once where they are short, in another process where they are long.

    read: can be pickled, and so can what it returns and raises. Raises `RequestError` or `ServerError` where the
    process does not answer.
    """
    if len(given) < LONG:
        return read(given)
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, _pool.call, SECONDS, read, given)
    except TimeOverError:
        raise RequestError(f"reading the request takes more than {SECONDS:g} s", "send a shorter one") from None
    except CrashError as problem:
        raise ServerError(f"the process that reads long requests failed: {problem}", "send it again") from None
