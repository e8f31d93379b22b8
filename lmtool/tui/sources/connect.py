"""A server, watched through the inspector's own prompts."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.tui.sources.event_pipeline import EventPipeline
from lmtool.tui.sources.requests import RequestSource
from lmtool.tui.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.tui.sources.event_pipeline import Feed
    from lmtool.types import GenerateRequest, ModelInfo


class ConnectSource(Source):
    """One connection to an LMTP server; a `Source`. Make it inside a running event loop."""

    def __init__(
        self,
        endpoint: str | Endpoint | None,
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        model: str | None = None,
        prompts: Sequence[GenerateRequest] = (),
        stay: bool = True,
    ) -> None:
        """Remember the server, None where it is `connect_to` later. Raises `UsageError`.

        prompts: sent together at once. stay: whether `run` goes on after they have been answered. The rest:
        `RequestSource`.
        """
        super().__init__(EventPipeline(warn, at="client"))
        self._find_tokenizer = find_tokenizer
        self._model = model
        self._prompts = prompts
        self._stay = stay
        self.title = "demo"
        if endpoint is not None:
            self.title = f"connect {self.connect_to(endpoint).where}"

    def connect_to(self, endpoint: str | Endpoint) -> RequestSource:
        """Send requests there. Raises `UsageError`."""
        numbers = itertools.count(1)
        self._requests = RequestSource(
            endpoint, self._pipeline, numbers.__next__, model=self._model, find_tokenizer=self._find_tokenizer
        )
        return self._requests

    async def run(self, feed: Feed) -> None:
        """Connect, send the prompts, feed what arrives. Raises `ConnectError` when the server is not there or goes."""
        requests = self._requests
        assert requests is not None
        self._pipeline.feed_to(feed)
        link = await requests.connect()
        prompts, self._prompts = self._prompts, ()  # once, also when a server that was lost is back
        for request in prompts:
            sampling = replace(request.sampling, seed=None) if link.plain else request.sampling  # LMQL's has no seeds
            await requests.generate(replace(request, sampling=sampling))
        if self._stay:
            await requests.until_lost()
        lost, answered = asyncio.create_task(requests.until_lost()), asyncio.create_task(requests.until_ended())
        done, left = await asyncio.wait({lost, answered}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if lost in done:
            lost.result()
