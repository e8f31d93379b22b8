"""The threads in which long texts are tokenized, so that nobody waits meanwhile but their own streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lmtool.core.types import ChatPrompt, MixedPrompt
from lmtool.net.subprocesses.resources import lower_priority, release_memory
from lmtool.net.subprocesses.work_queue import WorkQueue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from lmtool.core.types import Prompt

LONG = 4096
"""Characters from which on a text is long: tokenizing it takes a millisecond or more."""
_LARGE = 1 << 16
"""Characters whose tokenizing leaves megabytes behind."""
_MESSAGE = 128
"""Characters that rendering one message takes as long as."""

P = ParamSpec("P")
T = TypeVar("T")

_queue = WorkQueue(2, "lmtool-tokenize", lower_priority)


def prompt_size(prompt: Prompt, *, isolated: bool = False) -> int:
    """About how many characters must be read to tokenize a prompt; 0 for token ids.

    isolated: whether conversations are rendered in another process, which takes as long as a long text.
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
    """Run a function that reads `characters` characters in another process, short ones first; call in an event loop."""
    import asyncio  # takes longer than to tokenize a text, where nothing else needs it

    return asyncio.wrap_future(_queue.put(size, partial(_run, size, partial(function, *args, **kwargs))))


def _run(size: int, function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        if size >= _LARGE:
            release_memory()
