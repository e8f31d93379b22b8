"""Calls back when a time is over, for any number of times, with one thread."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadlines:
    """A clock that many can set. Callbacks run in its thread and must be short; none runs after `close`."""

    def __init__(self) -> None:
        self._set: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after so many seconds. There is no way to take it back: let the callback find nothing to do."""
        with self._changed:
            heapq.heappush(self._set, (time.monotonic() + seconds, next(self._numbers), callback))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="lmtool-guide-deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Forget all times and end the thread."""
        with self._changed:
            self._closed = True
            self._set.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            callback()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next time to be over; None when closed."""
        with self._changed:
            while not self._closed:
                wait = self._set[0][0] - time.monotonic() if self._set else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._set)[2]
                self._changed.wait(wait)
        return None
