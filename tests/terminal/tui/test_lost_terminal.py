"""What is still to be written once the terminal has gone, in a process of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, sys
from lmtool.terminal.tui.lost_terminal import discard_lost_output, terminal_is_lost
print(terminal_is_lost(), flush=True)
with contextlib.suppress(OSError):  # of a terminal that has gone
    sys.stdin.readline()
sys.{stream}.write("left over")
{call}
sys.exit(5)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(("call", "status"), [("discard_lost_output()", 5), ("", 120)], ids=["discarded", "not"])
def test_status(stream: str, call: str, status: int) -> None:
    """It is the program's own, though output is left that nobody can take; without the call it is the interpreter's."""
    master, slave = pty.openpty()
    program = [sys.executable, "-c", PROGRAM.format(stream=stream, call=call)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, env=buffered) as process:
        os.close(slave)
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(master, 100)
        assert said == b"False\r\n"
        os.close(master)
        assert process.wait(30) == status


def test_no_terminal() -> None:
    """A file or a pipe at stdin is none that has gone; what is written arrives."""
    program = [sys.executable, "-c", PROGRAM.format(stream="stdout", call="discard_lost_output()")]
    done = subprocess.run(program, input="", capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (5, "False\nleft over")
