"""The interpreter's switch interval, short while anything compiles."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from lmtool.guide.turns import NICENESS, TURN_SECONDS, short_turns, step_back


def test_as_long_as_anyone_is_inside() -> None:
    """Whoever leaves last puts back what was there, also after an error."""
    usual = sys.getswitchinterval()
    left, inside = threading.Event(), threading.Event()

    def other() -> None:
        with short_turns():
            inside.set()
            left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with pytest.raises(ValueError, match="oops"), short_turns():
        raise ValueError("oops")
    assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    left.set()
    thread.join()
    assert sys.getswitchinterval() == pytest.approx(usual)


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
