"""Counting Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lmtool.serving.interrupts import watch


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_signal_and_the_second_are_told_apart(number: int, status: int) -> None:
    """The first sets one event, the second another; the exit status is the first one's."""
    with watch() as interrupts:
        os.kill(os.getpid(), number)
        await interrupts.first.wait()
        assert not interrupts.second.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await interrupts.second.wait()
        assert interrupts.exit_status == status


async def test_the_handlers_found_are_put_back() -> None:
    """Who had the signals before has them afterwards."""
    before = signal.getsignal(signal.SIGINT)
    with watch():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_third_signal_ends_the_process_on_the_spot() -> None:
    """Whatever hangs, a third Ctrl-C gets through."""
    code = (
        "import asyncio, os, signal\n"
        "from lmtool.serving.interrupts import watch\n"
        "async def main():\n"
        "    with watch():\n"
        "        for _ in range(3): os.kill(os.getpid(), signal.SIGINT)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 130
