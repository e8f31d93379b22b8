"""Memory that goes back to the system."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

from lmtool.subprocesses import memory

PROGRAM = """
import re
from lmtool.subprocesses.memory import release_memory

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
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _name: object())
    memory._trim.cache_clear()
    memory.release_memory()
    memory._trim.cache_clear()
