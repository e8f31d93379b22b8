"""A process that is asked with a limit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import ResourceError, ServerError
from lmtool.guide.xgrammar import process as module
from lmtool.guide.xgrammar.process import CrashError, Process, TimeOverError

PROGRAM = """
import json, os, sys, time
def answer(header, body=b""):
    sys.stdout.buffer.write(json.dumps({**header, "bytes": len(body)}).encode() + b"\\n" + body)
    sys.stdout.buffer.flush()
settings = json.loads(sys.stdin.readline())
if settings.get("start") == "fails":
    answer({"error": "start", "message": "no library"})
    sys.exit()
time.sleep(settings.get("sleep", 0))
answer({})
for line in sys.stdin:
    asked = json.loads(line)
    if asked["kind"] == "hang":
        while True:
            pass
    if asked["kind"] == "crash":
        os.abort()
    if asked["kind"] == "leave":
        sys.exit(3)
    if asked["kind"] == "half":
        sys.stdout.buffer.write(b'{"bytes": 100}\\nhalf')
        sys.stdout.buffer.flush()
        sys.exit(0)
    answer({"pid": os.getpid(), "seconds": asked["seconds"]}, asked["kind"].encode())
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """The command of a program that does what it is told."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script)]


@pytest.fixture
def process(program: list[str]) -> Iterator[Process]:
    """A process that is ready."""
    made = Process(program, {"a": 1})
    made.ready()
    yield made
    made.close()


def pid(process: Process) -> int:
    answer, _ = process.ask({"kind": "who"}, 10)
    return int(answer["pid"])


def test_answers(process: Process) -> None:
    """A header and the bytes behind it; the process knows how long it may take, and stays the same."""
    answer, body = process.ask({"kind": "x" * 100_000}, 10)
    assert len(body) == 100_000
    assert answer["seconds"] > 10
    assert pid(process) == answer["pid"]
    process.start()
    process.ready()
    assert pid(process) == answer["pid"]


def test_killed_at_the_limit(process: Process) -> None:
    """A process that does not answer in time is killed, and another one answers the next question."""
    before, began = pid(process), time.monotonic()
    with pytest.raises(TimeOverError, match=r"more than 0\.2 s"):
        process.ask({"kind": "hang"}, 0.2)
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    process.ready()
    assert pid(process) != before


@pytest.mark.parametrize(
    ("kind", "told"), [("crash", "SIGABRT"), ("leave", "exit status 3"), ("half", "exit status 0")]
)
def test_crash(process: Process, kind: str, told: str) -> None:
    """A process that ends is told by how it ended; the next question is answered."""
    before = pid(process)
    with pytest.raises(CrashError, match=told):
        process.ask({"kind": kind}, 10)
    process.ready()
    assert pid(process) != before


def test_found_dead(process: Process) -> None:
    """A process that ended between two questions is started again."""
    before = pid(process)
    os.kill(before, 9)
    process._child.wait()  # type: ignore[union-attr]
    process.ready()
    assert pid(process) != before


def test_cannot_start(program: list[str]) -> None:
    """What it says is told, with what to do; so is a process that says nothing."""
    made = Process(program, {"start": "fails"})
    with pytest.raises(ResourceError, match="no library") as refused:
        made.ready()
    assert "--structured-backend llguidance" in refused.value.hints[0]
    made.close()
    silent = Process([sys.executable, "-c", ""], {})
    with pytest.raises(ServerError, match="did not start"):
        silent.ready()
    silent.close()


def test_a_slow_start_ends(program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that never gets ready is killed, too."""
    monkeypatch.setattr(module, "START_SECONDS", 0.3)
    made = Process(program, {"sleep": 60})
    with pytest.raises(ServerError, match=r"more than 0\.3 s"):
        made.ready()
    made.close()


def test_close_ends_what_runs(process: Process) -> None:
    """Closing from another thread ends a question that would not end; nothing starts afterwards."""
    caught: list[Any] = []

    def ask() -> None:
        try:
            process.ask({"kind": "hang"}, 60)
        except CrashError as problem:
            caught.append(problem)

    asking = threading.Thread(target=ask)
    asking.start()
    process.close()
    asking.join(10)
    assert len(caught) == 1
    with pytest.raises(ServerError, match="the server stops"):
        process.ready()
