"""Where vLLM's output goes, in a process of its own: this one's stdout and stderr are the test's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from lmtool.cli.vllm.log import EngineLog
log = EngineLog(Path(sys.argv[1]), verbose=sys.argv[2] == "verbose")
print("printed", flush=True)
subprocess.run([sys.executable, "-c", "import os; os.write(2, b'by a child')"])
print(repr(log.tail()), file=log.wire)
log.trim(9)
print(len(log.tail()), file=log.wire)
os.write(2, b"more")
print(repr(log.tail()), file=log.wire, flush=True)
log.report("error", "no room", "make some")
"""


def run(folder: Path, how: str) -> tuple[list[str], str]:
    """What comes out on stdout and on stderr."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder), how], capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_it_is_kept(tmp_path: Path) -> None:
    """Of all processes, and emptied when it has grown; stderr gets sentences only, stdout the protocol."""
    wire, stderr = run(tmp_path, "quiet")
    assert wire == [repr("printed\nby a child"), "0", repr("more")]
    assert stderr == "error: no room\n  make some\n"


def test_it_is_shown(tmp_path: Path) -> None:
    """On stderr, and nothing is kept."""
    wire, stderr = run(tmp_path, "verbose")
    assert wire == ["''", "0", "''"]
    assert stderr == "printed\nby a childmoreerror: no room\n  make some\n"
    assert not list(tmp_path.iterdir())
