"""Renders chat templates, but for the included model's, in processes of their own, within a time and a memory.

Jinja's sandbox keeps a template from Python, but not from endless loops and huge values.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError, ServerError
from lmtool.inference.text.worker import LONG, prompt_size
from lmtool.net.subprocesses.process import CrashError, Pool, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.types import ChatPrompt

SECONDS = 2.0
"""Processor time for one conversation; the longest that fit into a request take a tenth of it."""
_WALL_SECONDS = 60.0
"""Where streams take all processors (`NICENESS`), and for the start of the process."""
_MEMORY_BYTES = 1 << 30
"""Beside what the process has when it begins."""
REST_SECONDS = 60.0
"""How long a template that went beyond a limit for a short conversation is not tried again."""
_KEPT_SECONDS = 3600.0
"""How long an idle process is kept: a conversation goes on after minutes, and starting one takes half a second."""

_pool = Pool(2, _KEPT_SECONDS)
atexit.register(_pool.close)
TRUSTED: set[str] = set()
"""The included model's template, rendered in the server's own process: that takes a millisecond less."""
_resting: dict[str, float] = {}
"""When the templates that went beyond a limit may be tried again, by `time.monotonic`."""


def prepare(function: Callable[[], object]) -> None:
    """Begin to start a process and to call `function` there, so that the first conversation need not wait for it."""

    def call() -> None:
        with contextlib.suppress(CrashError, ServerError, TimeOverError):  # the first conversation starts another one
            _pool.call(_WALL_SECONDS, function)

    threading.Thread(target=call, name="lmtool-template", daemon=True).start()


def run_isolated(source: str, render: Callable[[ChatPrompt], str], chat: ChatPrompt) -> str:
    """What `render` returns for a conversation in another process; source: of its template.

    render: can be pickled, and so can what it raises. Raises that, and `RequestError` where a limit is passed.
    """
    limit = f"{SECONDS:g} s of processor time or {_MEMORY_BYTES >> 20} MiB"
    problem = f"the model's chat template takes more than {limit} for these messages"
    if _resting.get(source, 0.0) > time.monotonic():
        raise RequestError(problem, "send a prompt without a template, or try again in a minute")
    try:
        return _pool.call(_WALL_SECONDS, _limited, render, chat, SECONDS)
    except (TimeOverError, CrashError, MemoryError) as error:
        if prompt_size(chat) < LONG and not isinstance(error, TimeOverError):  # the template is to blame, not the chat
            _resting[source] = time.monotonic() + REST_SECONDS
        raise RequestError(problem, "send a prompt without a template") from None


def _limited(render: Callable[[ChatPrompt], str], chat: ChatPrompt, seconds: float) -> str:
    """Render in this process, which the system ends after `seconds` of processor time."""
    _limit_memory()
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        return render(chat)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


@cache
def _limit_memory() -> None:
    if sys.platform == "linux":  # elsewhere nothing tells what the process has
        import resource

        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY_BYTES, now + _MEMORY_BYTES))
