"""Threads that let others go first."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from lmtool.subprocesses.background import NICENESS, step_back


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities by thread")
def test_a_thread_that_steps_back() -> None:
    """Does so alone."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def run() -> None:
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [max(before, NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
