"""A server, watched through the inspector's own prompts."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from lmtool.tui.sources.asking import Asking
from lmtool.tui.sources.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.trace.events import Event
    from lmtool.tui.sources.source import Feed, Recorded, TextToScore
    from lmtool.types import GenerateRequest, ModelInfo


class ConnectSource:
    """One connection to an LMTP server; a `Source`. Make it inside a running event loop."""

    live = True
    cannot_ask = ""

    def __init__(
        self,
        endpoint: str | Endpoint,
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        model: str | None = None,
        prompts: Sequence[GenerateRequest] = (),
        stay: bool = True,
    ) -> None:
        """Remember the server. Raises `UsageError`.

        prompts: sent together at once. stay: whether `run` goes on after they have been answered. The rest: `Asking`.
        """
        self._intake = Intake(warn, at="client")
        self._asking = Asking(
            endpoint, self._intake, itertools.count(1).__next__, model=model, find_tokenizer=find_tokenizer
        )
        self._prompts = prompts
        self._stay = stay
        self.title = f"connect {self._asking.where}"

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request."""
        return self._asking.generate

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored."""
        return self._asking.score

    def cancel(self, label: str) -> None:
        """End a stream."""
        self._asking.cancel(label)

    async def run(self, feed: Feed) -> None:
        """Connect, send the prompts, feed what comes. Raises `ConnectError` when the server is not there or goes."""
        self._intake.feed_to(feed)
        await self._asking.connect()
        prompts, self._prompts = self._prompts, ()  # once, also when a server that was lost is back
        for request in prompts:
            await self._asking.generate(request)
        if self._stay:
            await self._asking.gone()
        gone = asyncio.create_task(self._asking.gone())
        answered = asyncio.create_task(self._asking.until_ended())
        done, left = await asyncio.wait({gone, answered}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if gone in done:
            gone.result()

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record from now on. Raises `FileError`, `UsageError`."""
        self._intake.start_recording(path, history)

    async def stop_recording(self) -> Recorded | None:
        """End the recording."""
        return await self._intake.stop_recording()

    @property
    def recorded(self) -> Recorded | None:
        """What is recorded so far."""
        return self._intake.recorded

    async def close(self) -> None:
        """Close the connection and the recording."""
        await self._asking.close()
        await self._intake.stop_recording()
