"""Processes that call functions, one or a pool of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from lmtool.core.errors import ConstraintError, ServerError
from lmtool.net.subprocesses.process import CrashError, OutOfBand, Pool, Process, TimeOverError, pack, receive, send
from tests.net.subprocesses import calls

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = sys.argv[1:]; from lmtool.net.subprocesses.process import main; main()",
]


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """The program, running."""
    return subprocess.Popen([*COMMAND, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def process() -> Iterator[Process]:
    """A process."""
    made = Process()
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two processes."""
    made = Pool(2)
    yield made
    made.close()


class TestProcess:
    """One process: what a call returns or raises, its limit, and how it ends."""

    def test_answers(self, process: Process) -> None:
        """Long things go over and come back; the process stays the same."""
        assert process.call(20, str.upper, "x" * 1_000_000) == "X" * 1_000_000
        first = process.call(20, calls.pid)
        assert first != os.getpid()
        process.start()
        process.start()
        assert process.call(20, calls.pid, None) == first

    def test_what_a_function_raises(self, process: Process) -> None:
        """Comes over whole, with where it was raised; the process goes on."""
        with pytest.raises(ConstraintError, match="no") as refused:
            process.call(20, calls.refuse)
        assert refused.value.hints == ("send another",)
        assert "in refuse" in refused.value.__notes__[0]
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            process.call(20, calls.unspeakable)
        assert process.call(20, len, "abc") == 3

    def test_what_is_printed_is_no_answer(self, process: Process) -> None:
        """Neither by Python nor below it."""
        assert process.call(20, calls.say, "hello\n") == "hello\n"

    def test_killed_at_the_limit(self, process: Process) -> None:
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
        [
            (calls.abort, "SIGABRT"),
            (partial(calls.leave, 3), "exit status 3"),
            (partial(calls.leave, 0), "exit status 0"),
        ],
    )
    def test_crash(self, process: Process, function: Any, told: str) -> None:
        """A process that ends is told by how it ended; the next question is answered."""
        before = process.call(20, calls.pid)
        with pytest.raises(CrashError, match=told):
            process.call(20, function)
        assert process.call(20, calls.pid) != before

    def test_ended(self, process: Process) -> None:
        """Killed while nobody asks it; the next question is answered by another one."""
        before = process.call(20, calls.pid)
        process.end()
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        process.end()
        assert process.call(20, calls.pid) != before

    def test_where_it_belongs(self, process: Process) -> None:
        """Ctrl-C does not reach it; yet it is of our session, whose processes Linux weighs by their niceness."""
        number = process.call(20, calls.pid)
        assert os.getsid(number) == os.getsid(0)
        assert os.getpgid(number) == number != os.getpgid(0)

    def test_garbage(self, process: Process) -> None:
        """None is left when the next question comes, however short the questions are."""
        assert process.call(20, calls.tie_knots, 10) == 0
        assert process.call(20, calls.tie_knots, 10) == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="pipes have one size elsewhere")
    def test_pipes_that_may_not_be_wide(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        """A user who has too many wide pipes gets narrow ones."""
        monkeypatch.setattr("lmtool.net.subprocesses.process._PIPE_BYTES", (1 << 32) - 1)
        assert process.call(20, len, "x" * (1 << 20)) == 1 << 20

    def test_found_dead(self, process: Process) -> None:
        """A process that ended between two questions is started again."""
        before = process.call(20, calls.pid)
        os.kill(before, 9)
        process._child.wait()  # type: ignore[union-attr]
        assert process.call(20, calls.pid) != before

    def test_close_ends_what_runs(self, process: Process) -> None:
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
    def test_steps_back(self, process: Process) -> None:
        """It is less urgent than the server."""
        assert process.call(20, os.getpriority, os.PRIO_PROCESS, 0) == max(10, os.getpriority(os.PRIO_PROCESS, 0))


def is_running(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class TestPool:
    """A few processes, any of which can be called."""

    def test_one_after_the_other_is_one_process(self, pool: Pool) -> None:
        """Another one is started only while the first is busy, and a third never."""
        alone = {pool.call(20, calls.pid) for _ in range(3)}
        assert len(alone) == 1
        with ThreadPoolExecutor(4) as threads:
            together = set(threads.map(lambda _: pool.call(20, calls.stay, 0.3), range(4)))
        assert len(together) == 2
        assert alone < together

    def test_who_waits_has_all_of_its_time(self, pool: Pool) -> None:
        """Waiting for a process that is free is not counted."""
        with ThreadPoolExecutor(3) as threads:
            busy = [threads.submit(pool.call, 20, calls.stay, 0.6) for _ in range(2)]
            time.sleep(0.1)
            assert threads.submit(pool.call, 0.5, calls.pid).result() in {one.result() for one in busy}

    def test_a_process_that_was_killed_is_replaced(self, pool: Pool) -> None:
        """And given back."""
        for _ in range(3):
            with pytest.raises(TimeOverError):
                pool.call(0.2, calls.hang)
        assert pool.call(20, len, "abc") == 3

    def test_end_idle(self, pool: Pool) -> None:
        """Those that are free end, whoever is asked goes on; they are there again when they are needed."""
        with ThreadPoolExecutor(2) as threads:
            free, busy = set(threads.map(lambda _: pool.call(20, calls.stay, 0.2), range(2))), calls.Gate()
            working = threads.submit(pool.call, 20, calls.wait_at, busy.path)
            busy.reached()
            pool.end_idle()
            busy.open()
            kept = working.result()
        (ended,) = free - {kept}
        with pytest.raises(ProcessLookupError):
            os.kill(ended, 0)
        with ThreadPoolExecutor(2) as threads:
            again = set(threads.map(lambda _: pool.call(20, calls.stay, 0.2), range(2)))
        assert kept in again
        assert ended not in again

    def test_unused(self) -> None:
        """A process that nobody needs for a while ends, one that is needed stays, and so does one that is called."""
        pool, calls_in_a_row = Pool(2, idle_seconds=1.0), 8
        with ThreadPoolExecutor(2) as threads:
            both = set(threads.map(lambda _: pool.call(20, calls.stay, 0.2), range(2)))
            needed = {threads.submit(pool.call, 20, calls.stay, 0.3).result() for _ in range(calls_in_a_row)}
        assert len(both) == 2
        assert len(needed) == 1
        assert {pid for pid in both if is_running(pid)} == needed
        until = time.monotonic() + 20
        while any(map(is_running, needed)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(is_running, needed))
        assert pool.call(20, calls.pid) not in both
        pool.close()

    def test_closed(self, pool: Pool) -> None:
        """Nobody is asked any more."""
        pool.close()
        with pytest.raises(ServerError, match="the server stops"):
            pool.call(20, calls.pid)


class TestChild:
    """The program of the child, alone."""

    @pytest.mark.parametrize("given", ["", "abc", "na\u00efve \U0001f680", "half a pair: \ud83d", b"", b"\xff\x00"])
    def test_messages(self, given: str | bytes) -> None:
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

    def test_ends_with_its_input(self, child: subprocess.Popen[bytes]) -> None:
        """A helper whose server is gone ends by itself, also in the middle of a question."""
        assert child.stdin is not None
        child.stdin.write(b"\x09")
        child.communicate(timeout=60)
        assert child.returncode == 0

    def test_left_alone_it_ends(self, child: subprocess.Popen[bytes]) -> None:
        """A helper whose server is gone while a library hangs ends itself when its time is over."""
        assert child.stdin is not None
        send(child.stdin, pack((calls.hang, 0.3)))
        child.communicate(timeout=60)
        assert child.returncode != 0

    def test_time_left_over_is_nobodys(self, child: subprocess.Popen[bytes]) -> None:
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
