"""Four prompts that race each other on the embedded model: something to watch where there is no server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.trace.events import Remark
from lmtool.tui.sources.connect import ConnectSource
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.trace.events import Event
    from lmtool.tui.sources.source import Feed, Recorded, TextToScore
    from lmtool.types import ModelInfo

PROMPTS = (
    "Tell me a story about a fox.",
    "Tell me a story about a lighthouse.",
    "What is the capital of France?",
    "Tell me a story about a robot.",
)
SAMPLING = SamplingParams(max_tokens=160, temperature=0.9, top_logprobs=8, seed=1)


def racing(prompts: Sequence[str] = PROMPTS, sampling: SamplingParams = SAMPLING) -> list[GenerateRequest]:
    """The requests of a race: each prompt with a seed of its own."""
    return [
        GenerateRequest(0, prompt, replace(sampling, seed=None if sampling.seed is None else sampling.seed + lane))
        for lane, prompt in enumerate(prompts)
    ]


class DemoSource:
    """A server of its own, and four prompts; a `Source`. Make it inside a running event loop."""

    live = True
    cannot_ask = ""
    title = "demo"

    def __init__(
        self,
        serving: Callable[[Callable[[str], None]], AbstractAsyncContextManager[str]],
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        prompts: Sequence[GenerateRequest],
        stay: bool = True,
    ) -> None:
        """Start nothing yet.

        serving: makes the server; told a function that takes sentences on how far it is; gives its URL. prompts: the
        race. stay: whether `run` goes on after they have been answered.
        """
        self._serving = serving
        self._warn = warn
        self._find_tokenizer = find_tokenizer
        self._prompts = prompts
        self._stay = stay
        self._stack = AsyncExitStack()
        self._connected: ConnectSource | None = None
        self._record: Path | None = None

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request, once the model is there."""
        return None if self._connected is None else self._connected.generate

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored."""
        return None if self._connected is None else self._connected.score

    def cancel(self, label: str) -> None:
        """End a stream."""
        if self._connected is not None:
            self._connected.cancel(label)

    async def run(self, feed: Feed) -> None:
        """Load the model, let the prompts race, stay for further ones."""
        if self._connected is not None:
            await self._connected.run(feed)
            return
        feed([Remark(0.0, "note", 0, "no server answers at the default address: the embedded model is loaded here")])
        url = await self._stack.enter_async_context(
            self._serving(lambda sentence: feed([Remark(0.0, "note", 0, sentence)]))
        )
        self._connected = ConnectSource(
            url, self._warn, find_tokenizer=self._find_tokenizer, prompts=self._prompts, stay=self._stay
        )
        if self._record is not None:
            self._connected.start_recording(self._record)
        await self._connected.run(feed)

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record from now on, or from when the model is there. Raises `FileError`, `UsageError`."""
        if self._connected is None:
            self._record = path
        else:
            self._connected.start_recording(path, history)

    async def stop_recording(self) -> Recorded | None:
        """End the recording."""
        self._record = None
        return None if self._connected is None else await self._connected.stop_recording()

    @property
    def recorded(self) -> Recorded | None:
        """What is recorded so far."""
        return None if self._connected is None else self._connected.recorded

    async def close(self) -> None:
        """End the streams, the server, the recording."""
        if self._connected is not None:
            await self._connected.close()
        await self._stack.aclose()
