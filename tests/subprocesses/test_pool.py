"""A few processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmtool.errors import ServerError
from lmtool.subprocesses.pool import Pool
from lmtool.subprocesses.process import TimeOverError
from tests.subprocesses import calls


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two."""
    made = Pool(2)
    yield made
    made.close()


def test_one_after_the_other_is_one_process(pool: Pool) -> None:
    """Another one is started only while the first is busy, and a third never."""
    alone = {pool.call(20, calls.pid) for _ in range(3)}
    assert len(alone) == 1
    with ThreadPoolExecutor(4) as threads:
        together = set(threads.map(lambda _: pool.call(20, calls.stay, 0.3), range(4)))
    assert len(together) == 2
    assert alone < together


def test_who_waits_has_all_of_its_time(pool: Pool) -> None:
    """Waiting for a process that is free is not counted."""
    with ThreadPoolExecutor(3) as threads:
        busy = [threads.submit(pool.call, 20, calls.stay, 0.6) for _ in range(2)]
        time.sleep(0.1)
        assert threads.submit(pool.call, 0.5, calls.pid).result() in {one.result() for one in busy}


def test_a_process_that_was_killed_is_replaced(pool: Pool) -> None:
    """And given back."""
    for _ in range(3):
        with pytest.raises(TimeOverError):
            pool.call(0.2, calls.hang)
    assert pool.call(20, len, "abc") == 3


def test_end_idle(pool: Pool) -> None:
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


def test_closed(pool: Pool) -> None:
    """Nobody is asked any more."""
    pool.close()
    with pytest.raises(ServerError, match="the server stops"):
        pool.call(20, calls.pid)
