"""Keeps a compiling thread from standing in the way of others.

Rewriting a schema is Python, which holds the interpreter's lock; the engine's thread takes and gives that lock for each
of the hundreds of operations of a step, and would wait for up to the interpreter's switch interval (5 ms) each time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_SECONDS = 0.0001
"""How long a thread keeps the interpreter's lock from others meanwhile."""

NICENESS = 5
"""Of a compiling thread: with this, another one that wants the same core gets three quarters of it."""

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
