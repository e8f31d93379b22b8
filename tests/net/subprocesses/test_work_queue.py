"""Threads that do what waits."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lmtool.net.subprocesses.work_queue import WorkQueue

PROGRAM = """
import threading, time
from lmtool.net.subprocesses.work_queue import WorkQueue

def work():
    begun.set()
    while not queue._ended:
        time.sleep(0.01)
    print("done")

queue, begun = WorkQueue(1, "test"), threading.Event()
queue.put(0, work)
begun.wait(60)
queue.put(1, lambda: print("left"))
"""


def test_short_before_long() -> None:
    """Of what waits; of what is about as long, the earlier one; what was cancelled is not done."""
    queue, begun, go_on, done = WorkQueue(1, "test"), threading.Event(), threading.Event(), list[int]()
    queue.put(1 << 20, lambda: (begun.set(), go_on.wait(60)))
    begun.wait(60)
    works = {size: queue.put(size, lambda size=size: done.append(size)) for size in (9000, 8500, 200, 300, 260)}
    assert works[260].cancel()
    go_on.set()
    works[8500].result(60)
    assert done == [200, 300, 9000, 8500]


def test_outcomes() -> None:
    """What the work returned, or raised; each thread prepares itself once."""
    prepared: list[int] = []
    queue = WorkQueue(1, "test", lambda: prepared.append(threading.get_ident()))
    assert queue.put(1, threading.get_ident).result(60) == prepared[0] != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        queue.put(1, lambda: 1 // 0).result(60)
    assert queue.put(1, lambda: 2).result(60) == 2
    assert len(prepared) == 1


def test_the_process_ends() -> None:
    """Once work in progress is done; what waits is left."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["done"]
