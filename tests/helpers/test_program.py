"""The program of a helper, alone."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from lmtool.helpers.program import receive, send
from tests.helpers import calls

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = sys.argv[1:]; from lmtool.helpers.program import main; main()",
]


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """The program, running."""
    return subprocess.Popen([*COMMAND, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_ends_with_its_input(child: subprocess.Popen[bytes]) -> None:
    """A helper whose server is gone ends by itself, also in the middle of a question."""
    assert child.stdin is not None
    child.stdin.write(b"\x09")
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_left_alone_it_ends(child: subprocess.Popen[bytes]) -> None:
    """A helper whose server is gone while a library hangs ends itself when its time is over."""
    assert child.stdin is not None
    send(child.stdin, (calls.hang, 0.3))
    child.communicate(timeout=60)
    assert child.returncode != 0


def test_time_left_over_is_nobodys(child: subprocess.Popen[bytes]) -> None:
    """The limit of a call ends with the call."""
    assert child.stdin is not None
    assert child.stdout is not None
    send(child.stdin, (calls.pid, 0.5))
    first = receive(child.stdout)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    send(child.stdin, pickle.dumps((calls.pid, 0.5)))
    assert receive(child.stdout) == first == (True, child.pid)
    child.communicate(timeout=60)
