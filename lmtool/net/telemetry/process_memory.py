"""What the processes of a server hold: its own, and those that it has started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.metrics import MetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")


def process_metrics() -> list[MetricFamily]:
    """Memory, descriptors and CPU time of this process, by the names that every program has; and of its children.

    Nothing where the system has no /proc. Blocks for some milliseconds, by the number of processes on the machine.
    """
    own = resident_bytes(os.getpid())
    return [] if own is None else list(_families(own))


def _families(own: int) -> Iterator[MetricFamily]:
    gauge, times = MetricFamily.gauge, os.times()
    yield gauge("process_resident_memory_bytes", "Memory of the server's own process.", own)
    yield gauge("process_open_fds", "Descriptors that it has open.", sum(1 for _ in (_PROC / "self/fd").iterdir()))
    spent = round(times.user + times.system, 3)
    yield MetricFamily.counter("process_cpu_seconds_total", "CPU time that it has taken.", spent)
    sizes = [size for size in map(resident_bytes, children()) if size is not None]
    yield gauge("child_processes", "Processes that the server has started: workers and helpers.", len(sizes))
    yield gauge("child_resident_memory_bytes", "Memory of these, shared pages counted in each.", sum(sizes))


def resident_bytes(pid: int) -> int | None:
    """The memory of a process that is in RAM; None where it is gone or not known."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def children(pid: int | None = None) -> Iterator[int]:
    """The processes below one, ours by default, those that it has started through others included."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            parents.setdefault(parent, []).append(int(entry.name))
    waiting = [os.getpid() if pid is None else pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        yield from below
        waiting += below


def _parent(process: Path) -> int | None:
    try:
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])  # the name before may hold anything
    except (OSError, ValueError, IndexError):
        return None
