"""Threads that do what waits, short before long: a large request must not hold up those that take no time."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
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
    """Work that waits for a few threads. What was cancelled is not begun; the process ends once the rest is done."""

    def __init__(self, threads: int, name: str, prepare: Callable[[], object] | None = None) -> None:
        """prepare: what each thread calls first."""
        self._entries: PriorityQueue[_Entry] = PriorityQueue()
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(threads, name, initializer=prepare)

    def put(self, size: int, work: Callable[[], T]) -> Future[T]:
        """Let work wait for its turn. size: of what it reads."""
        entry = _Entry(size.bit_length(), next(self._numbers), work)
        self._entries.put(entry)
        self._threads.submit(self._run_next)
        return entry.outcome

    def _run_next(self) -> None:
        entry = self._entries.get_nowait()  # there is one for each call
        if not entry.outcome.set_running_or_notify_cancel():
            return  # whoever asked has left
        try:
            entry.outcome.set_result(entry.work())
        except Exception as problem:  # noqa: BLE001  # it is raised where the outcome is waited for
            entry.outcome.set_exception(problem)
            del entry  # else the error would hold itself, and what was asked, until garbage is collected
