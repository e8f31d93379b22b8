"""Reads long requests in processes of their own: half a megabyte of JSON would make all streams wait for 30 ms."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from lmtool.errors import RequestError, ServerError
from lmtool.helpers.memory import LARGE, release_memory
from lmtool.helpers.pool import LONG, Pool
from lmtool.helpers.process import CrashError, TimeOverError
from lmtool.helpers.program import OutOfBand

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", str, bytes, str | bytes)
R = TypeVar("R")

SECONDS = 10.0
"""What reading one request may take."""
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
            _queue.put(given, partial(_pool.call, SECONDS, read, cast("T", OutOfBand(given))))
        )
    except TimeOverError:
        raise RequestError(f"reading the request takes more than {SECONDS:g} s", "send a shorter one") from None
    except CrashError as problem:
        raise ServerError(f"the process that reads long requests failed: {problem}", "send it again") from None
    finally:
        if len(given) >= LARGE:
            _release_later(asyncio.get_running_loop())


@dataclass(order=True, slots=True)
class _Entry:
    size: int
    """Binary digits of the length."""
    number: int
    """Of two of one size, the earlier one comes first."""
    work: Callable[[], Any] = field(compare=False)
    outcome: Future[Any] = field(compare=False, default_factory=Future)


class _Queue:
    """Threads that do what waits, short before long: a large request must not hold up those that take no time."""

    def __init__(self, threads: int) -> None:
        self._entries: PriorityQueue[_Entry] = PriorityQueue()
        self._numbers = itertools.count()
        self._missing = threads

    def put(self, given: str | bytes, work: Callable[[], R]) -> Future[R]:
        """Let work wait for its turn. given: what it reads."""
        entry = _Entry(len(given).bit_length(), next(self._numbers), work)
        self._entries.put(entry)
        if self._missing:
            self._missing -= 1
            threading.Thread(target=self._run, name="lmtool-reading", daemon=True).start()
        return entry.outcome

    def _run(self) -> None:
        while True:
            _run_entry(self._entries.get())


def _run_entry(entry: _Entry) -> None:
    if not entry.outcome.set_running_or_notify_cancel():
        return  # whoever asked has left
    try:
        entry.outcome.set_result(entry.work())
    except Exception as problem:  # noqa: BLE001  # it is raised where the outcome is waited for
        entry.outcome.set_exception(problem)
        del entry  # else the error would hold itself, and what was asked, until garbage is collected


_pool = Pool(_MOST)
_queue = _Queue(_MOST)
atexit.register(_pool.close)

_releasing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = WeakKeyDictionary()


def _release_later(loop: asyncio.AbstractEventLoop) -> None:
    """Give back what large requests leave behind, once no more of them come."""
    if loop in _releasing:
        _releasing[loop].cancel()
    _releasing[loop] = loop.call_later(_RELEASE_SECONDS, _release, loop)


def _release(loop: asyncio.AbstractEventLoop) -> None:
    del _releasing[loop]
    _queue.put("", _give_back)


def _give_back() -> None:
    _pool.end_idle()
    release_memory()
