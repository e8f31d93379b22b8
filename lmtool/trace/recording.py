"""A recording that goes on while a program runs: flushed in the background, given up when the disk is full."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from lmtool.trace.events import Close, Drop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.trace.events import Event
    from lmtool.trace.recorder import Recorder

FLUSH_EVERY = 0.05
"""Seconds; what is older than twice this is not lost when the process is killed."""


class Recording:
    """Records events of any number of connections, into one trace or one for each connection.

    Never stands in the way of what it records: when writing fails, it says so once and stops.
    """

    def __init__(
        self, start: Callable[[int], Recorder], warn: Callable[[str], None], clock: Callable[[], float], *, split: bool
    ) -> None:
        """Make a recording. Call from its event loop.

        start: begins the trace of a connection; split: of each one, otherwise of number 0 at once and for all. clock:
        seconds since the recording began. Raises what `start` raises.
        """
        self._start = start
        self._warn = warn
        self._clock = clock
        self._split = split
        self._recorders: dict[int, Recorder] = {} if split else {0: start(0)}
        self._to_close: dict[int, Recorder] = {}
        """Of connections that have ended, to be closed."""
        self._closed_connections: set[int] = set()
        self._counts = (0, 0, 0)
        """Of traces that are closed: how many, their events and tokens."""
        self._suspects: Counter[str] = Counter()
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._flush_often())
        self.failed = ""
        """Why recording was given up; empty while it goes on."""

    def tell(self, number: int, events: Iterable[Event]) -> None:
        """Record the events of a connection; they come in order of time."""
        for event in events:  # to the end: whoever follows the connection must see what goes by
            if not self.failed and number not in self._closed_connections:
                self._take(number if self._split else 0, event)
            if self._split and isinstance(event, Close | Drop) and number in self._recorders:
                self._closed_connections.add(number)
                self._to_close[number] = self._recorders.pop(number)

    def _take(self, key: int, event: Event) -> None:
        if key not in self._recorders and not self._begin(key):
            return
        try:
            self._recorders[key].take((event,))
        except Exception as bug:  # noqa: BLE001 - a mistake of ours must not cut the connection that is recorded
            self._give_up(f"lmtool failed ({type(bug).__name__}: {bug}), this is a bug")

    def _begin(self, key: int) -> bool:
        from lmtool.errors import FileError

        try:
            self._recorders[key] = self._start(key)
        except FileError as error:
            self._give_up(error.message)
        return not self.failed

    async def _flush_often(self) -> None:
        while not self._stopping.is_set() and not self.failed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), FLUSH_EVERY)
            for recorder in list(self._recorders.values()):
                await self._try(recorder.flush)
                if recorder.overrun:
                    self._give_up("the disk is too slow for what is recorded")
            await self._close_all(self._to_close)

    async def _close_all(self, recorders: dict[int, Recorder]) -> None:
        """Write the end records; what is open for each connection does not grow with the number there ever were."""
        while recorders:
            number, recorder = next(iter(recorders.items()))
            await self._try(partial(recorder.close, self._clock()))
            recorder.abandon()
            del recorders[number]
            traces, events, tokens = self._counts
            self._counts = traces + 1, events + recorder.counts[0], tokens + recorder.counts[1]
            self._suspects.update(recorder.suspects)

    async def _try(self, action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            await asyncio.to_thread(action)
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _give_up(self, reason: str) -> None:
        if not self.failed:
            self.failed = reason
            self._warn(f"RECORDING STOPPED: {reason}. Everything is still passed on; what was written can be read.")

    async def close(self) -> None:
        """Write what is left and the end records."""
        self._stopping.set()
        await self._task
        await self._close_all(self._to_close)
        await self._close_all(self._recorders)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Traces, events and tokens so far."""
        counts = [recorder.counts for recorder in (*self._to_close.values(), *self._recorders.values())]
        traces, events, tokens = self._counts
        return traces + len(counts), events + sum(count for count, _ in counts), tokens + sum(n for _, n in counts)

    @property
    def suspects(self) -> Counter[str]:
        """What looked like a key, and how often."""
        open_now = (recorder.suspects for recorder in (*self._to_close.values(), *self._recorders.values()))
        return sum(open_now, Counter(self._suspects))
