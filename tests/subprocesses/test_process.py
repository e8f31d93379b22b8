"""A process that is asked with a limit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from lmtool.errors import ConstraintError, ServerError
from lmtool.subprocesses.process import CrashError, Process, TimeOverError
from tests.subprocesses import calls


@pytest.fixture
def process() -> Iterator[Process]:
    """A process."""
    made = Process()
    yield made
    made.close()


def test_answers(process: Process) -> None:
    """Long things go over and come back; the process stays the same."""
    assert process.call(20, str.upper, "x" * 1_000_000) == "X" * 1_000_000
    first = process.call(20, calls.pid)
    assert first != os.getpid()
    process.start()
    process.start()
    assert process.call(20, calls.pid, None) == first


def test_what_a_function_raises(process: Process) -> None:
    """Comes over whole, with where it was raised; the process goes on."""
    with pytest.raises(ConstraintError, match="no") as refused:
        process.call(20, calls.refuse)
    assert refused.value.hints == ("send another",)
    assert "in refuse" in refused.value.__notes__[0]
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        process.call(20, calls.unspeakable)
    assert process.call(20, len, "abc") == 3


def test_what_is_printed_is_no_answer(process: Process) -> None:
    """Neither by Python nor below it."""
    assert process.call(20, calls.say, "hello\n") == "hello\n"


def test_killed_at_the_limit(process: Process) -> None:
    """A process that does not answer in time is killed, and another one answers the next question."""
    before, began = process.call(20, calls.pid), time.monotonic()
    with pytest.raises(TimeOverError, match=r"more than 0\.2 s"):
        process.call(0.2, calls.hang)
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert process.call(20, calls.pid) != before


@pytest.mark.parametrize(
    ("function", "told"),
    [(calls.abort, "SIGABRT"), (partial(calls.leave, 3), "exit status 3"), (partial(calls.leave, 0), "exit status 0")],
)
def test_crash(process: Process, function: Any, told: str) -> None:
    """A process that ends is told by how it ended; the next question is answered."""
    before = process.call(20, calls.pid)
    with pytest.raises(CrashError, match=told):
        process.call(20, function)
    assert process.call(20, calls.pid) != before


def test_ended(process: Process) -> None:
    """Killed while nobody asks it; the next question is answered by another one."""
    before = process.call(20, calls.pid)
    process.end()
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    process.end()
    assert process.call(20, calls.pid) != before


def test_where_it_belongs(process: Process) -> None:
    """Ctrl-C does not reach it; yet it is of our session, whose processes Linux weighs by their niceness."""
    number = process.call(20, calls.pid)
    assert os.getsid(number) == os.getsid(0)
    assert os.getpgid(number) == number != os.getpgid(0)


def test_garbage(process: Process) -> None:
    """None is left when the next question comes, however short the questions are."""
    assert process.call(20, calls.tie_knots, 10) == 0
    assert process.call(20, calls.tie_knots, 10) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="pipes have one size elsewhere")
def test_pipes_that_may_not_be_wide(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has too many wide pipes gets narrow ones."""
    monkeypatch.setattr("lmtool.subprocesses.process._PIPE_BYTES", (1 << 32) - 1)
    assert process.call(20, len, "x" * (1 << 20)) == 1 << 20


def test_found_dead(process: Process) -> None:
    """A process that ended between two questions is started again."""
    before = process.call(20, calls.pid)
    os.kill(before, 9)
    process._child.wait()  # type: ignore[union-attr]
    assert process.call(20, calls.pid) != before


def test_close_ends_what_runs(process: Process) -> None:
    """Closing from another thread ends a question that would not end; nothing starts afterwards."""
    process.start()
    caught: list[Any] = []

    def ask() -> None:
        try:
            process.call(60, calls.hang)
        except CrashError as problem:
            caught.append(problem)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    process.close()
    asking.join(10)
    assert len(caught) == 1
    with pytest.raises(ServerError, match="the server stops"):
        process.start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities by process")
def test_steps_back(process: Process) -> None:
    """It is less urgent than the server."""
    assert process.call(20, os.getpriority, os.PRIO_PROCESS, 0) == max(10, os.getpriority(os.PRIO_PROCESS, 0))
