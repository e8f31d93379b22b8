"""Priority of threads, and memory that goes back to the system."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
import threading

import pytest

from lmtool.net.subprocesses import resources
from lmtool.net.subprocesses.resources import NICENESS, lower_priority

PROGRAM = """
import re
from lmtool.net.subprocesses.resources import release_memory

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


HEAPS = """
import sys, threading
from lmtool.net.subprocesses.resources import share_heaps

if sys.argv[1:]:
    share_heaps()
together = threading.Barrier(12)

def allocate():
    import ctypes
    part = ctypes.CDLL(None).malloc
    part.restype = ctypes.c_void_p
    found.add(part(2000) >> 26)
    together.wait()

found = set()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_threads_share_heaps() -> None:
    """Many threads allocate from few heaps, each of which lies between two multiples of 64 MiB."""

    def heaps(*words: str, **variables: str) -> int:
        command = [sys.executable, "-c", HEAPS, *words]
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | variables
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert heaps("share") <= 3 < heaps()
    assert heaps("share", MALLOC_ARENA_MAX="9") > 3, "who says how many it shall be gets them"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages so")
def test_whole_pages_go_back() -> None:
    """What shares a page with other memory keeps its content; whole pages are the system's, and read as zeros."""
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * len(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    resources.give_back_pages(address + 1, 3 * mmap.PAGESIZE)
    resources.give_back_pages(address + 1, mmap.PAGESIZE)
    assert [memory[at * mmap.PAGESIZE] for at in range(4)] == [ord("x"), 0, 0, ord("x")]


def test_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to be called, nothing is."""
    monkeypatch.setattr(resources.ctypes, "CDLL", lambda _name: object())
    resources._c_function.cache_clear()
    resources.release_memory()
    resources.share_heaps()
    resources.give_back_pages(1 << 20, 1 << 20)
    resources._c_function.cache_clear()


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
