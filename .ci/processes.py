"""Fails when a process that a run of `.ci/run` started is still there: `processes.py FOLDER`, the run's own folder."""

import contextlib
import os
import sys
import time

import psutil

PATIENCE = 20.0
"""Seconds that processes of ended parents get to notice it."""


def left(folder: str) -> list[str]:
    """Command lines of processes that inherited the run's folder, but for this one and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            inherited = process.environ().get("LMTOOL_CI_FOLDER") == folder
            if process.pid not in own and (inherited or folder in " ".join(process.cmdline())):
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


until = time.monotonic() + PATIENCE
while (processes := left(sys.argv[1])) and time.monotonic() < until:
    time.sleep(0.5)
sys.exit("left running:\n" + "\n".join(processes) if processes else 0)
