"""Threads that do what waits, short before long: a large request must not hold up those that take no time."""

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
    """Binary digits of what the work is as long as."""
    number: int
    """Of two of one size, the earlier one comes first."""
    work: Callable[[], Any] = field(compare=False)
    outcome: Future[Any] = field(compare=False, default_factory=Future)


class WorkQueue:
    """Work that waits for a few threads. What was cancelled is not begun, and nothing is once the process ends."""

    def __init__(self, threads: int, name: str, prepare: Callable[[], object] = int) -> None:
        """prepare: what each thread calls first."""
        self._entries: PriorityQueue[_Entry] = PriorityQueue()
        self._numbers = itertools.count()
        make = partial(threading.Thread, target=self._run, args=[prepare], name=name, daemon=True)
        self._unstarted = [make() for _ in range(threads)]
        self._started: list[threading.Thread] = []
        self._ended = False
        atexit.register(self._end)

    def put(self, size: int, work: Callable[[], T]) -> Future[T]:
        """Let work wait for its turn. size: of what it reads."""
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
            _do(self._entries.get())

    def _end(self) -> None:
        """Wait for work in progress: library code that comes back to an interpreter that has ended crashes."""
        self._ended = True
        self._unstarted.clear()
        for _ in self._started:
            self.put(0, int)
        for thread in self._started:
            thread.join()


def _do(entry: _Entry) -> None:
    if not entry.outcome.set_running_or_notify_cancel():
        return  # whoever asked has left
    try:
        entry.outcome.set_result(entry.work())
    except Exception as problem:  # noqa: BLE001  # it is raised where the outcome is waited for
        entry.outcome.set_exception(problem)
        del entry  # else the error would hold itself, and what was asked, until garbage is collected
