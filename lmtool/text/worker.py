"""The threads in which long texts are tokenized, so that nobody waits meanwhile but their own streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lmtool.subprocesses.background import step_back
from lmtool.subprocesses.memory import release_memory
from lmtool.subprocesses.work_queue import WorkQueue
from lmtool.types import ChatMessage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from lmtool.types import Prompt

LONG = 4096
"""Characters from which on a text is long: tokenizing it takes a millisecond or more."""
_LARGE = 1 << 16
"""Characters whose tokenizing leaves megabytes behind."""
_MESSAGE = 128
"""Characters that rendering one message takes as long as."""

P = ParamSpec("P")
T = TypeVar("T")

_queue = WorkQueue(2, "lmtool-tokenize", step_back)


def prompt_size(prompt: Prompt) -> int:
    """About how many characters must be read to tokenize a prompt; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    if not prompt or not isinstance(prompt[0], ChatMessage):
        return 0
    messages = (one for one in prompt if isinstance(one, ChatMessage))
    return sum(_MESSAGE + len(one.content) + sum(len(call.arguments) for call in one.tool_calls) for one in messages)


def run_in_worker(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """What a function returns that reads so many characters, the short ones first; call from a running event loop."""
    import asyncio  # takes longer than to tokenize a text, where nothing else needs it

    return asyncio.wrap_future(_queue.put(size, partial(_run, size, partial(function, *args, **kwargs))))


def _run(size: int, function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        if size >= _LARGE:
            release_memory()
