"""The program of a helper, alone."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from lmtool.subprocesses.program import OutOfBand, pack, receive, send
from tests.subprocesses import calls

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = sys.argv[1:]; from lmtool.subprocesses.program import main; main()",
]


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """The program, running."""
    return subprocess.Popen([*COMMAND, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("given", ["", "abc", "na\u00efve \U0001f680", "half a pair: \ud83d", b"", b"\xff\x00"])
def test_messages(given: str | bytes) -> None:
    """What is sent arrives; a long text, or bytes, as what it is, though it goes beside the pickle."""
    pipe = io.BytesIO()
    parts = pack((len, [OutOfBand(given), 1.5]))
    assert len(parts) == 2
    send(pipe, parts)
    pipe.seek(0)
    assert receive(pipe) == (len, [given, 1.5])
    pipe.seek(0)
    pipe.truncate(len(pipe.getvalue()) - 1)
    with pytest.raises(EOFError):
        receive(pipe)


def test_ends_with_its_input(child: subprocess.Popen[bytes]) -> None:
    """A helper whose server is gone ends by itself, also in the middle of a question."""
    assert child.stdin is not None
    child.stdin.write(b"\x09")
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_left_alone_it_ends(child: subprocess.Popen[bytes]) -> None:
    """A helper whose server is gone while a library hangs ends itself when its time is over."""
    assert child.stdin is not None
    send(child.stdin, pack((calls.hang, 0.3)))
    child.communicate(timeout=60)
    assert child.returncode != 0


def test_time_left_over_is_nobodys(child: subprocess.Popen[bytes]) -> None:
    """The limit of a call ends with the call."""
    assert child.stdin is not None
    assert child.stdout is not None
    send(child.stdin, pack((calls.pid, 0.5)))
    first = receive(child.stdout)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    send(child.stdin, pack((calls.pid, 0.5)))
    assert receive(child.stdout) == first == (True, child.pid)
    child.communicate(timeout=60)
