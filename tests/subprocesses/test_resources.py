"""Priority of threads, and memory that goes back to the system."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading

import pytest

from lmtool.subprocesses import resources
from lmtool.subprocesses.resources import NICENESS, lower_priority

PROGRAM = """
import re
from lmtool.subprocesses.resources import release_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

release_memory()
before = resident()
parts = [bytes(20_000) for _ in range(4000)]
kept = parts[-1]  # at the end of what was taken: all before it stays with the C library
del parts
held = resident()
release_memory()
print(before, held, resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_release() -> None:
    """What the C library keeps for later goes back."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, held, after = map(int, re.findall(r"\d+", run.stdout))
    assert held > before + 50
    assert after < before + 10


def test_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to be called, nothing is."""
    monkeypatch.setattr(resources.ctypes, "CDLL", lambda _name: object())
    resources._trim.cache_clear()
    resources.release_memory()
    resources._trim.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities by thread")
def test_a_thread_that_steps_back() -> None:
    """Does so alone."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    found: list[int] = []

    def run() -> None:
        lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [max(before, NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
