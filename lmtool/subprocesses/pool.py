"""A few processes, any of which can be asked."""

from __future__ import annotations

import contextlib
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lmtool.subprocesses.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 16 * 1024
"""Characters or bytes from which reading or writing something takes a millisecond or more."""

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """At most so many processes, each started when all others are busy. Safe from any thread."""

    def __init__(self, most: int) -> None:
        self._processes = [Process() for _ in range(most)]
        self._free: LifoQueue[Process] = LifoQueue()
        for process in reversed(self._processes):
            self._free.put(process)

    def call(self, seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Process.call`; waits for a process that is free, which the seconds do not count."""
        process = self._free.get()
        try:
            return process.call(seconds, function, *args, **kwargs)
        finally:
            self._free.put(process)

    def end_idle(self) -> None:
        """End those that nobody asks now, with all the memory that they took; they start again when they are needed."""
        free: list[Process] = []
        with contextlib.suppress(Empty):
            while True:
                free.append(self._free.get_nowait())
        for process in reversed(free):
            process.end()
            self._free.put(process)

    def close(self) -> None:
        """Kill them; whoever waits for an answer gets `CrashError`, whoever asks later `ServerError`."""
        for process in self._processes:
            process.close()
