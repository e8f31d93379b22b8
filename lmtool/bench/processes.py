"""Which process of this machine listens on a port, and how much CPU time it and its children have used (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"


def listener(port: int) -> int | None:
    """The id of the process that listens on a TCP port; None where that is not to be found out."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in _numbers(PROC):
        if wanted & _open_files(process):
            return process
    return None


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # another system, or no IPv6
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _open_files(process: int) -> set[str]:
    found = set()
    try:
        for entry in (PROC / str(process) / "fd").iterdir():
            found.add(str(entry.readlink()))
    except OSError:
        return found  # another user's, or gone meanwhile
    return found


def cpu_seconds(process: int) -> float | None:
    """CPU time, user's and system's, of a process and all that descend from it; None when it is gone."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for number in _numbers(PROC):
        try:
            text = (PROC / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # gone meanwhile
        fields = text.rpartition(")")[2].split()
        parents[number] = int(fields[1])
        used[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    if process not in used:
        return None
    return sum(seconds for number, seconds in used.items() if _descends(number, process, parents))


def _descends(number: int, ancestor: int, parents: dict[int, int]) -> bool:
    while number != ancestor and number in parents:
        number = parents[number]
    return number == ancestor


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()]
    except OSError:
        return []
