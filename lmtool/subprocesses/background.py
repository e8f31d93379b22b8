"""How what can wait makes room for streams that cannot."""

from __future__ import annotations

import os
import sys
import threading

NICENESS = 10
"""Of what compiles and reads: another thread that wants the same core gets nine tenths of it."""


def step_back() -> None:
    """Let all other threads of this machine go before the calling one, and those that it will start, for ever.

    Only Linux does that by thread; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
