"""A server, watched through the inspector's own prompts, and through those of its other clients where it lets us."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from lmtool.core.errors import AccessDeniedError, OverloadedError, RequestError, UsageError
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.http_requests import http_requests
from lmtool.terminal.tui.sources.requests import RequestSource
from lmtool.terminal.tui.sources.source import Source
from lmtool.terminal.tui.sources.watching import WatchFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import GenerateRequest, ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.client_connection import ClientConnection
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.terminal.tui.sources.requests import TextToScore


_USUAL = ":8080"
"""Where nothing has to be said."""


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
        scores: Sequence[TextToScore] = (),
        stay: bool = True,
        others: Literal["no", "if possible", "only"] = "no",
    ) -> None:
        """Remember the server, None where it is `connect_to` later. Raises `UsageError`.

        prompts: sent together at once. scores: texts that are scored at once. stay: whether `run` goes on after they
        have been answered. others: whether the streams of other clients are watched; `only`: there is nothing else to
        see here. The rest: `RequestSource`.
        """
        super().__init__(EventPipeline(warn, at="client"))
        self._find_tokenizer = find_tokenizer
        self._model = model
        self._prompts = prompts
        self._scores = scores
        self._stay = stay
        self._others = others
        self._numbers = itertools.count(1)
        self._watching = False
        """Whether the server shows other clients."""
        self.title = "demo"
        if endpoint is not None:
            self.title = f"connect {self.connect_to(endpoint).where}"

    def connect_to(self, endpoint: str | Endpoint) -> RequestSource:
        """Send requests there. Raises `UsageError`."""
        self._requests = RequestSource(
            endpoint, self._pipeline, self._numbers.__next__, model=self._model, find_tokenizer=self._find_tokenizer
        )
        self._http = http_requests(endpoint, self._pipeline, self._numbers.__next__)
        return self._requests

    @property
    def advice(self) -> str:
        """How a stream of another client comes about."""
        where = "" if self._requests is None else self._requests.where
        place = "" if where == _USUAL else f"-e {where} "
        return f'ask something in another terminal:  lmtool chat {place}"Hello there"' if self._watching else ""

    async def run(self, feed: Feed) -> None:
        """Connect, send the prompts, feed what arrives. Raises `ConnectError` when the server is not there or goes.

        Raises `UsageError` where nothing else is to be seen than others, and the server does not show them.
        """
        requests = self._requests
        assert requests is not None
        self._pipeline.feed_to(feed)
        link = await requests.connect()
        feed_others = WatchFeed(
            self._pipeline, self._numbers.__next__, None if self._http is None else self._http.agent
        )
        try:
            await self._watch(link, feed_others)
            await self._run(requests, link)
        finally:
            feed_others.lose()

    async def _watch(self, link: ClientConnection, others: WatchFeed) -> None:
        if self._others == "no":
            return
        try:
            await link.watch(others.take)
        except (AccessDeniedError, RequestError, OverloadedError) as refused:
            if self._others == "only":
                raise UsageError(
                    f"{self.title}: there is no keyboard here to type a prompt, and other clients are not shown: "
                    f"{refused.message}",
                    *refused.hints,
                    'send a prompt:  lmtool inspect --prompt "Once upon a time"',
                    "stand between:  lmtool inspect --proxy 127.0.0.1:8081 --to URL",
                ) from None
            self._pipeline.note(f"only prompts from here are shown, those of other clients are not: {refused.sentence}")
        else:
            self._watching = True
            self.title = f"watch {self.title.removeprefix('connect ').removeprefix('watch ')}"

    async def _run(self, requests: RequestSource, link: ClientConnection) -> None:
        prompts, self._prompts = self._prompts, ()  # once, also when a server that was lost is back
        for request in prompts:
            sampling = replace(request.sampling, seed=None) if link.plain else request.sampling  # LMQL's has no seeds
            await requests.generate(replace(request, sampling=sampling))
        scores, self._scores = self._scores, ()
        for text in scores:
            await requests.score(text)
        if self._stay or self._others == "only":
            await requests.until_lost()
        lost, answered = asyncio.create_task(requests.until_lost()), asyncio.create_task(requests.until_ended())
        done, left = await asyncio.wait({lost, answered}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if lost in done:
            lost.result()
