"""A queue of work for a few threads, short before long: a large request must not delay those that take no time."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(order=True, slots=True)
class _Entry:
    size: int
    """Binary digits of the length of its input."""
    number: int
    """Breaks ties: first come, first served."""
    work: Callable[[], Any] = field(compare=False)
    outcome: Future[Any] = field(compare=False, default_factory=Future)


class WorkQueue:
    """Work for a few threads. What was cancelled is not started, and nothing is once the process ends."""

    def __init__(self, threads: int, name: str, prepare: Callable[[], object] = int) -> None:
        """prepare: called first in each thread."""
        self._entries: PriorityQueue[_Entry] = PriorityQueue()
        self._numbers = itertools.count()
        make = partial(threading.Thread, target=self._run, args=[prepare], name=name, daemon=True)
        self._unstarted = [make() for _ in range(threads)]
        self._started: list[threading.Thread] = []
        self._ended = False
        atexit.register(self._end)

    def put(self, size: int, work: Callable[[], T]) -> Future[T]:
        """Queue work. size: bytes or characters of its input."""
        entry = _Entry(size.bit_length(), next(self._numbers), work)
        self._entries.put(entry)
        with contextlib.suppress(IndexError):
            thread = self._unstarted.pop()
            thread.start()
            self._started.append(thread)
        return entry.outcome

    def _run(self, prepare: Callable[[], object]) -> None:
        prepare()
        while not self._ended:
            _run_entry(self._entries.get())

    def _end(self) -> None:
        """Wait for work in progress: library code that returns to an interpreter that has ended crashes."""
        self._ended = True
        self._unstarted.clear()
        for _ in self._started:
            self.put(0, int)
        for thread in self._started:
            thread.join()


def _run_entry(entry: _Entry) -> None:
    if not entry.outcome.set_running_or_notify_cancel():
        return
    try:
        entry.outcome.set_result(entry.work())
    except Exception as problem:  # noqa: BLE001  # raised by the future
        entry.outcome.set_exception(problem)
        del entry  # else the error would keep itself and the request alive until garbage is collected
