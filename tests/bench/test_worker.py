"""Worker processes: what they answer, and how they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.bench.worker import FOREIGN, MODULE, Worker, command
from lmtool.errors import ConnectError, ResourceError, TimeLimitError


async def test_a_worker_that_cannot_load_says_why() -> None:
    """The reason from inside the process, in one sentence."""
    async with Worker("lmtool", sys.executable, {"threads": 1}) as worker:
        with pytest.raises(ResourceError, match=r"lmtool failed: KeyError: 'model'"):
            await worker.start(60)


async def test_a_worker_that_dies_says_its_last_words() -> None:
    """Its status, and what it wrote last."""
    async with Worker("no such peer", sys.executable, {"threads": 1}) as worker:
        with pytest.raises(ResourceError, match="no such peer failed: KeyError"):
            await worker.start(60)
        with pytest.raises(ConnectError, match="ended with status 0"):
            await worker.ask(60, do="anything")


async def test_a_worker_that_says_nothing_is_not_waited_for_for_ever() -> None:
    """And its process is ended with the block."""
    async with Worker("maker", sys.executable, {"threads": 1}) as worker:
        with pytest.raises(TimeLimitError, match="maker gave no answer"):
            await worker.start(0.001)


async def test_a_python_that_is_not_there() -> None:
    """Refused with its name."""
    async with Worker("maker", "/no/python", {"threads": 1}) as worker:
        with pytest.raises(ResourceError, match="cannot start '/no/python'"):
            await worker.start(1)


def test_a_foreign_python_gets_nothing_of_this_environment() -> None:
    """It is told where this package lies, and no path to the packages beside it."""
    words = command("python-of-a-peer", "lmtool.bench.peers.worker", ["vllm", "{}"])
    assert words[:2] == ["python-of-a-peer", "-c"]
    assert words[2] == FOREIGN.format(module="lmtool.bench.peers.worker")
    assert words[-2:] == ["vllm", "{}"]
    assert command(sys.executable, "a.b", ["c"]) == [sys.executable, "-m", "a.b", "c"]


def test_a_foreign_python_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """Such as a folder named like an engine, with a clone of its repository."""
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the working folder')")
    (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
    words = command(str(tmp_path / "python"), MODULE, ["no such peer", "{}"])
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "KeyError: 'no such peer'" in done.stdout, done.stderr
