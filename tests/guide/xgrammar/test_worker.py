"""The program that compiles, in its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.guide.xgrammar import worker
from lmtool.guide.xgrammar.process import CrashError, Process, TimeOverError
from tests.guide.xgrammar.fakes import FAKE, SETTINGS

COMMAND = ("env", f"PYTHONPATH={FAKE}", sys.executable, "-P", str(Path(worker.__file__)))


@pytest.fixture
def process() -> Iterator[Process]:
    """The program over the library's stand-in, ready."""
    made = Process(COMMAND, SETTINGS)
    made.ready()
    yield made
    made.close()


def ask(process: Process, text: str, kind: str = "grammar") -> tuple[dict[str, Any], bytes]:
    return process.ask({"kind": kind, "text": text}, 20)


def test_compiled(process: Process) -> None:
    """A grammar and a structural tag come back as the library's text."""
    answer, body = ask(process, 'root ::= "yes" | "no"')
    assert "error" not in answer
    assert json.loads(body) == [["yes", "no"], ""]
    tag = json.dumps({"type": "structural_tag", "format": {"value": "a"}})
    assert json.loads(ask(process, tag, "structural_tag")[1]) == [["a"], ""]


@pytest.mark.parametrize(
    ("text", "error"), [('root ::= "slow slow"', "slow"), ('root ::= "stuck"', "empty"), ("refuse", "refused")]
)
def test_what_is_wrong_is_told(process: Process, text: str, error: str) -> None:
    """What the library refuses, what is slow, and what no text matches; the process goes on."""
    answer, body = ask(process, text)
    assert (answer["error"], body) == (error, b"")
    assert ask(process, 'root ::= "a"')[1]


def test_a_library_that_hangs_or_crashes(process: Process) -> None:
    """Costs its own question only."""
    with pytest.raises(TimeOverError):
        process.ask({"kind": "grammar", "text": "hang"}, 0.5)
    process.ready()
    with pytest.raises(CrashError, match="SIGABRT"):
        ask(process, "crash")
    process.ready()
    assert ask(process, 'root ::= "a"')[1]


def test_without_the_library(tmp_path: Path) -> None:
    """The program says that it cannot start."""
    (tmp_path / "xgrammar.py").write_text("raise ImportError('broken here')\n")
    command = ["env", f"PYTHONPATH={tmp_path}", sys.executable, "-P", str(Path(worker.__file__))]
    told = json.dumps(SETTINGS).encode() + b"\n"
    ran = subprocess.run(command, input=told, capture_output=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == {"error": "start", "message": "ImportError: broken here", "bytes": 0}


def test_left_alone_it_ends() -> None:
    """A process whose server is gone while the library hangs ends itself; one that waits ends with its stdin."""
    child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    question = {"kind": "grammar", "text": "hang", "seconds": 0.5}
    child.communicate(b"".join(json.dumps(line).encode() + b"\n" for line in (SETTINGS, question)), timeout=60)
    assert child.returncode == -signal.SIGALRM
    waiting = subprocess.run(COMMAND, input=json.dumps(SETTINGS).encode(), capture_output=True, timeout=60, check=True)
    assert json.loads(waiting.stdout) == {"bytes": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A constraint that takes more than it may is refused, and the process goes on."""
    hungry = (
        (FAKE / "xgrammar.py")
        .read_text()
        .replace(
            'if "crash" in text:', 'if "eat" in text:\n            bytearray(1 << 33)\n        if "crash" in text:'
        )
    )
    (tmp_path / "xgrammar.py").write_text(hungry)
    made = Process(["env", f"PYTHONPATH={tmp_path}", *COMMAND[2:]], SETTINGS)
    made.ready()
    answer, _ = ask(made, "eat")
    assert answer["error"] == "refused"
    assert ask(made, 'root ::= "a"')[1]
    made.close()


def test_niceness() -> None:
    """It lets others go first, as far as it is told."""
    made = Process(COMMAND, {**SETTINGS, "niceness": 7})
    made.ready()
    assert made._child is not None
    assert os.getpriority(os.PRIO_PROCESS, made._child.pid) - os.getpriority(os.PRIO_PROCESS, 0) == 7
    made.close()


def test_an_idle_process_stays() -> None:
    """The time of a question is over with its answer."""
    child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for line in (SETTINGS, {"kind": "grammar", "text": 'root ::= "a"', "seconds": 0.5}):
        child.stdin.write(json.dumps(line).encode() + b"\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        child.stdout.read(answer["bytes"])
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1.0)
    child.communicate(timeout=20)
    assert child.returncode == 0
