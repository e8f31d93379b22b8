"""Counts Ctrl-C and SIGTERM: the first requests a graceful shutdown, the second an immediate one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from lmtool.net.subprocesses.exit import exit_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_STATUS = 128
"""Plus a signal's number: exit status of a process ended by that signal."""


class Interrupts:
    """Signals received so far; belongs to the event loop in which `watch` was entered."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        """Set by the first signal."""
        self.second = asyncio.Event()
        """Set by the second signal."""
        self.signal: int = signal.SIGINT
        """The number of the first signal."""

    @property
    def exit_status(self) -> int:
        """The exit status by which shells recognise this signal: 130 for Ctrl-C."""
        return EXIT_STATUS + self.signal

    def received(self, number: int) -> None:
        """Count one signal; the third exits the process immediately."""
        if self.second.is_set():
            exit_now(EXIT_STATUS + number)
        if self.first.is_set():
            self.second.set()
        else:
            self.signal = number
            self.first.set()


@contextlib.contextmanager
def watch() -> Iterator[Interrupts]:
    """Count the signals of this process instead of ending it. Call from the main thread's event loop."""
    loop, interrupts = asyncio.get_running_loop(), Interrupts()

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(interrupts.received, number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
