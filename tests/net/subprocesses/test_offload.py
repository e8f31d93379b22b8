"""Long requests, read by helpers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import weakref

import pytest

from lmtool.core.errors import ConstraintError, RequestError, ServerError
from lmtool.net.subprocesses import offload
from lmtool.net.subprocesses.offload import is_long, run_in_subprocess
from lmtool.net.subprocesses.process import LONG
from lmtool.net.subprocesses.resources import LARGE
from lmtool.net.subprocesses.work_queue import WorkQueue
from tests.net.subprocesses import calls


def test_what_is_long() -> None:
    """What takes so long that others would notice."""
    assert is_long("x" * LONG)
    assert not is_long(b"x" * (LONG - 1))


async def test_where_a_text_is_read() -> None:
    """In another process."""
    assert await run_in_subprocess(calls.pid, "x") != os.getpid()
    assert await run_in_subprocess(len, "x" * LONG) == LONG


async def test_the_shorter_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that wait; among those of about one length nobody is overtaken."""
    monkeypatch.setattr(offload, "_queue", WorkQueue(1, "test"))
    gate, begun = calls.Gate(), []
    waiting = [asyncio.ensure_future(run_in_subprocess(calls.wait_at, gate.path))]
    await asyncio.to_thread(gate.reached)
    for name, length in (("large", 9000), ("other", 8500), ("small", 200), ("middle", 300), ("late", 260)):
        waiting.append(asyncio.ensure_future(run_in_subprocess(calls.first, name.ljust(length, "."))))
        waiting[-1].add_done_callback(lambda done: begun.append(done.result()))
        await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*waiting)
    assert begun == ["small", "middle", "late", "large", "other"]


async def test_nothing_of_a_refused_request_stays() -> None:
    """Its bytes are free as soon as it is answered, without a collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        body = calls.Body("x" * LONG)
        known = weakref.ref(body)
        with contextlib.suppress(ConstraintError):
            await run_in_subprocess(calls.refuse, body)
        del body
        await run_in_subprocess(calls.pid, "x")  # the thread has let go of it when it does the next one
        assert known() is None
    finally:
        gc.enable()


async def test_memory_is_given_back_after_the_last_large_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own, and the processes end."""
    released = threading.Semaphore(0)
    monkeypatch.setattr(offload, "release_memory", released.release)
    monkeypatch.setattr(offload, "_RELEASE_SECONDS", 0.1)
    process = await run_in_subprocess(calls.pid, "x" * LARGE)
    assert await asyncio.to_thread(released.acquire, timeout=30)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert await run_in_subprocess(len, "x") == 1
    assert not released.acquire(blocking=False)


async def test_what_cannot_be_read() -> None:
    """The reader's error is the caller's, though it is another process's."""
    with pytest.raises(ConstraintError, match="no"):
        await run_in_subprocess(calls.refuse, "x")


async def test_a_reader_that_hangs_or_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends its own request, in words."""
    monkeypatch.setattr(offload, "SECONDS", 0.3)
    with pytest.raises(RequestError, match=r"more than 0\.3 s"):
        await run_in_subprocess(calls.hang, "x" * LONG)
    monkeypatch.setattr(offload, "SECONDS", 20.0)
    with pytest.raises(ServerError, match="SIGABRT"):
        await run_in_subprocess(calls.abort, "x" * LONG)
    assert await run_in_subprocess(len, "x" * LONG) == LONG
