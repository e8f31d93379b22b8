"""An exit that waits for nothing, but for what must not be left behind."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import threading
from lmtool.net.subprocesses.exit import cleaned_at_exit, exit_now
threading.Thread(target=threading.Event().wait).start()
with cleaned_at_exit(lambda: print("never", flush=True)):
    pass
with cleaned_at_exit(lambda: print("cleaned", flush=True)):
    exit_now(7)
"""


def test_cleanups_and_status() -> None:
    """Cleanups of blocks that are still open run, others do not; threads that run are not waited for."""
    done = subprocess.run([sys.executable, "-c", CODE], check=False, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "cleaned\n")
