"""Real processes that end with others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import PATIENCE

WORKER = """
import os, signal, subprocess, sys
from pathlib import Path
from lmtool.inference.backends.vllm.watchdog import LivenessSocket
folder = Path(sys.argv[1])
life = LivenessSocket(folder)
life.end_with_reader(1)
if sys.argv[2] == "forked":
    child = os.fork()
    if not child:
        signal.pause()
else:
    engine = "import signal, sys; from pathlib import Path; "
    engine += "from lmtool.inference.backends.vllm.watchdog import end_with_worker; "
    engine += "end_with_worker(Path(sys.argv[1])); print('up', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", engine, folder], stdout=subprocess.PIPE)
    process.stdout.readline()
    child = process.pid
print(child, flush=True)
signal.pause()
"""
"""Has one other process, spawned or forked, and says which."""


@pytest.fixture(params=["spawned", "forked"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A worker and its engine."""
    folder = tmp_path / "shared"
    folder.mkdir()
    words = [sys.executable, "-c", WORKER, str(folder), request.param]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as worker:
        assert worker.stdout is not None
        engine = psutil.Process(int(worker.stdout.readline()))
        yield worker, engine
        worker.kill()
    assert not folder.exists()


def ended(process: psutil.Process) -> bool:
    """Whether it ends within some time."""
    psutil.wait_procs([process], PATIENCE)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_worker_that_is_killed(tree: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """Takes its engine with it, which removes their folder."""
    worker, engine = tree
    worker.kill()
    assert ended(engine)


def test_a_server_that_is_killed(tree: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    """Closes what the worker writes to: both end, though the worker is writing nothing."""
    worker, engine = tree
    assert worker.stdout is not None
    worker.stdout.close()
    assert ended(engine)
    assert ended(psutil.Process(worker.pid))


def test_an_engine_that_comes_too_late(tmp_path: Path) -> None:
    """Ends before it does anything; the folder is left to nobody."""
    (tmp_path / "shared").mkdir()
    program = "import sys; from pathlib import Path; "
    program += "from lmtool.inference.backends.vllm.watchdog import end_with_worker; "
    program += "end_with_worker(Path(sys.argv[1])); print('computes')"
    words = [sys.executable, "-c", program, str(tmp_path / "shared")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert not (tmp_path / "shared").exists()
