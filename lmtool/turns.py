"""Keeps long work in Python from standing in the way of the engine's thread and of the event loop.

Such work, reading half a megabyte of JSON or rewriting a schema, holds the interpreter's lock; the engine's thread
takes and gives that lock many times a step, and each time would wait for up to the switch interval (5 ms).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURN_SECONDS = 0.0001
"""How long a thread keeps the interpreter's lock from others meanwhile."""

NICENESS = 5
"""Of a compiling thread: with this, another one that wants the same core gets three quarters of it."""

LONG = 32 * 1024
"""Characters or bytes from which reading something takes a millisecond or more, and is done beside the event loop."""

T = TypeVar("T", str, bytes, str | bytes)
R = TypeVar("R")

_lock = threading.Lock()
_inside = 0
_usual = 0.0


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Keep the switch interval short while any thread is in here."""
    global _inside, _usual
    with _lock:
        if not _inside:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, TURN_SECONDS))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_usual)


def step_back() -> None:
    """Let all other threads of this machine go before the calling one, for ever; only Linux does that by thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


async def beside(read: Callable[[T], R], given: T) -> R:
    """What `read` makes of a text or bytes: at once where they are short, in another thread where they are long."""
    if len(given) < LONG:
        return read(given)
    return await asyncio.to_thread(_in_short_turns, read, given)


def _in_short_turns(read: Callable[[T], R], given: T) -> R:
    with short_turns():
        return read(given)
