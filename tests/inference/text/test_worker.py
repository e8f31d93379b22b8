"""The threads in which long texts are tokenized."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from lmtool.core.types import ChatMessage, ChatPrompt, Prompt, ToolCall
from lmtool.inference.text import worker
from lmtool.inference.text.worker import prompt_size, run_in_worker
from lmtool.net.subprocesses.resources import NICENESS


@pytest.mark.parametrize(
    ("prompt", "least", "most"),
    [
        ("x" * 10, 10, 10),
        ((1,) * 1000, 0, 0),
        ((), 0, 0),
        (ChatPrompt((ChatMessage("user", "x" * 1000),)), 1000, 1200),
        (ChatPrompt((ChatMessage("user", ""),) * 100), 1000, 100_000),
        (ChatPrompt((ChatMessage("assistant", "", (ToolCall("1", "f", "x" * 5000),)),)), 5000, 5200),
    ],
)
def test_sizes(prompt: Prompt, least: int, most: int) -> None:
    """Characters to be tokenized; each message counts even without any; ids are no work."""
    assert least <= prompt_size(prompt) <= most


def where() -> tuple[int, int]:
    """The thread, and its niceness; on Linux alone, each thread has one of its own."""
    number = threading.get_native_id() if sys.platform == "linux" else 0
    return threading.get_ident(), os.getpriority(os.PRIO_PROCESS, number)


async def test_where_it_runs() -> None:
    """In another thread, which lets all others go first."""
    thread, niceness = await run_in_worker(10, where)
    assert thread != threading.get_ident()
    assert niceness >= NICENESS or sys.platform != "linux"
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(10, lambda: 1 // 0)


async def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a large text, in the same thread, also where it could not be tokenized."""
    released: list[int] = []
    monkeypatch.setattr(worker, "release_memory", lambda: released.append(threading.get_ident()))
    await run_in_worker(1000, where)
    assert not released
    thread, _ = await run_in_worker(worker._LARGE, where)
    assert released == [thread]
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(worker._LARGE, lambda: 1 // 0)
    assert len(released) == 2
