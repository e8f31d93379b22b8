"""What processes hold."""

from __future__ import annotations

import os
import subprocess
import sys

from lmtool.net.telemetry.process_memory import children, process_metrics, resident_bytes


def test_this_process_and_those_that_it_started() -> None:
    """Its own memory is no child's; a child's is counted as long as it runs, and so are children of children."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        below = set(children())
        assert child.pid in below
        assert len(set(children(child.pid)) & below) == 1
        values = {family.name: family.samples[0][1] for family in process_metrics()}
        child.communicate(b"\n")
    own = resident_bytes(os.getpid())
    assert own is not None
    assert 0.5 < values["process_resident_memory_bytes"] / own < 2
    assert values["child_processes"] >= 2
    assert values["child_resident_memory_bytes"] > 1_000_000
    assert values["process_open_fds"] > 3
    assert values["process_cpu_seconds_total"] > 0
    assert child.pid not in children()
    assert resident_bytes(child.pid) is None
