"""Worker threads that tokenize long texts, and worker processes that render chat templates within limits.

Threads keep long texts from delaying other streams. Jinja's sandbox isolates a template from Python, but not from
endless loops and huge values: every template except the included model's runs in a process with limited time and
memory.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lmtool.core.errors import RequestError, ServerError
from lmtool.core.types import ChatPrompt, MixedPrompt
from lmtool.net.subprocesses.process import CrashError, Pool, TimeOverError
from lmtool.net.subprocesses.resources import lower_priority, release_memory
from lmtool.net.subprocesses.work_queue import WorkQueue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from lmtool.core.types import Prompt


LONG = 4096
"""Characters of a long text: tokenizing it takes a millisecond or more."""
_LARGE = 1 << 16
"""Characters above which tokenizing leaves megabytes of free memory to release."""
_MESSAGE = 128
"""Cost of rendering one message, as characters to tokenize."""

P = ParamSpec("P")
T = TypeVar("T")

_queue = WorkQueue(2, "lmtool-tokenize", lower_priority)


def prompt_size(prompt: Prompt, *, isolated: bool = False) -> int:
    """Estimated number of characters to read for a prompt; 0 for token ids.

    isolated: conversations are rendered in another process, which takes as long as a long text.
    """
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, ChatPrompt):
        size = LONG if isolated or prompt.tools or prompt.chat_template_kwargs else len(prompt.prefill)
        for message in prompt.messages:
            size += _MESSAGE + len(message.content) + sum(len(call.arguments) for call in message.tool_calls)
        return size
    if isinstance(prompt, MixedPrompt):
        return sum(len(part) for part in prompt.parts if isinstance(part, str))
    return 0


def run_in_worker(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Run a function in a worker thread, small `size` (characters) first; call in an event loop."""
    import asyncio  # takes longer than to tokenize a text, where nothing else needs it

    return asyncio.wrap_future(_queue.put(size, partial(_run, size, partial(function, *args, **kwargs))))


def _run(size: int, function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        if size >= _LARGE:
            release_memory()


SECONDS = 2.0
"""Seconds of CPU for one conversation; the longest that fit into a request take a tenth of it."""
_WALL_SECONDS = 60.0
"""Seconds including the start of the process, when streams use all processors (`NICENESS`)."""
_MEMORY_BYTES = 1 << 30
"""Limit on memory, in addition to that of the fresh process."""
REST_SECONDS = 60.0
"""Seconds for which a template that exceeded a limit for a short conversation is refused."""
_KEPT_SECONDS = 3600.0
"""Seconds until an idle process ends: conversations continue after minutes, and a start takes half a second."""

_pool = Pool(2, _KEPT_SECONDS)
atexit.register(_pool.close)
TRUSTED: set[str] = set()
"""Templates rendered in the server's own process, which saves a millisecond: the included model's."""
_resting: dict[str, float] = {}
"""Time by `time.monotonic` until which each template that exceeded a limit is refused."""


def call_early(function: Callable[[], object]) -> None:
    """Start a process in the background and call `function` there, so that the first conversation need not wait."""

    def call() -> None:
        with contextlib.suppress(CrashError, ServerError, TimeOverError):  # the first conversation starts another one
            _pool.call(_WALL_SECONDS, function)

    threading.Thread(target=call, name="lmtool-template", daemon=True).start()


def run_isolated(source: str, render: Callable[[ChatPrompt], str], chat: ChatPrompt) -> str:
    """Render a conversation in another process. source: the template.

    render and its exceptions must be picklable. Raises these, and `RequestError` if a limit is exceeded.
    """
    limit = f"{SECONDS:g} s of processor time or {_MEMORY_BYTES >> 20} MiB"
    problem = f"the model's chat template takes more than {limit} for these messages"
    if _resting.get(source, 0.0) > time.monotonic():
        raise RequestError(problem, "send a prompt without a template, or try again in a minute")
    try:
        return _pool.call(_WALL_SECONDS, _limited, render, chat, SECONDS)
    except (TimeOverError, CrashError, MemoryError) as error:
        if prompt_size(chat) < LONG and not isinstance(error, TimeOverError):  # the template is at fault, not the chat
            _resting[source] = time.monotonic() + REST_SECONDS
        raise RequestError(problem, "send a prompt without a template") from None


def _limited(render: Callable[[ChatPrompt], str], chat: ChatPrompt, seconds: float) -> str:
    """Render in this process, which the kernel ends after `seconds` of CPU time."""
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
