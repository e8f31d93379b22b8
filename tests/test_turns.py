"""The interpreter's switch interval, short while anything long is done; long texts, read beside the event loop."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from lmtool.turns import LONG, NICENESS, TURN_SECONDS, beside, short_turns, step_back


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


@pytest.mark.parametrize(("length", "aside"), [(LONG - 1, False), (LONG, True)])
async def test_where_a_text_is_read(length: int, *, aside: bool) -> None:
    """A short one at once, a long one in another thread, in short turns."""

    def read(text: str) -> tuple[int, int, float]:
        return len(text), threading.get_ident(), sys.getswitchinterval()

    read_length, thread, interval = await beside(read, "x" * length)
    assert read_length == length
    assert (thread != threading.get_ident()) == aside
    assert (interval == pytest.approx(TURN_SECONDS)) == aside


async def test_what_cannot_be_read() -> None:
    """The reader's error is the caller's, from another thread as well."""

    def read(text: str) -> None:
        raise ValueError(text[:4])

    for length in (4, LONG):
        with pytest.raises(ValueError, match="oops"):
            await beside(read, "oops" * length)
