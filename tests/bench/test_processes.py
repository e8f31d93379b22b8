"""Who listens, and how much CPU time a process has used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from lmtool.bench.processes import PROC, cpu_seconds, listener

pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="needs Linux's /proc")


def test_who_listens_on_a_port() -> None:
    """This process, or nobody."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) is None


def test_cpu_time_counts_children() -> None:
    """A child's work is its parent's; a process that is gone has none to tell."""
    work = "import sys; sum(range(4_000_000)); print(); sys.stdin.read()"
    before = cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    own = cpu_seconds(child.pid)
    total = cpu_seconds(os.getpid())
    assert own is not None
    assert total is not None
    assert before is not None
    assert own > 0
    assert total - before > own - 0.005  # ticks of a hundredth, as floats
    child.communicate(b"")
    assert cpu_seconds(child.pid) is None
