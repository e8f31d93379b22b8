"""A server, watched through the inspector's own requests and, if it allows, those of its other clients."""

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
from lmtool.trace.codec import LineError, event_from
from lmtool.trace.events import Close, Drop, Open
from lmtool.trace.server_tap import taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import GenerateRequest, ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.client_connection import ClientConnection
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.protocol.lmtp.messages import Watched
    from lmtool.terminal.tui.request_builder import TextToScore
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.trace.events import Event


class WatchFeed:
    """Feeds a pipeline with the events that one connection watches."""

    def __init__(self, pipeline: EventPipeline, number: Callable[[], int], own_agent: str | None = None) -> None:
        """number: gives each connection its number. own_agent: of connections that are fed by who made them."""
        self._own_agent = own_agent
        self._own: set[int] = set()
        """Open connections of that agent, by the server's numbers."""
        self._pipeline = pipeline
        self._number = number
        self._numbers: dict[int, int] = {}
        """Our numbers of open connections, by the server's numbers."""
        self._offset: float | None = None
        """Offset from the server's clock to ours, in seconds."""

    def take(self, watched: Watched) -> None:
        """Feed the events of a WATCH message."""
        if self._offset is None:
            self._offset = self._pipeline.clock() - watched.time
        if watched.lost:
            events = "1 event" if watched.lost == 1 else f"{watched.lost} events"
            self._pipeline.note(f"{events} of other clients were lost: more went by than could be sent here")
        for value in watched.events:
            try:
                event = taken_apart(event_from(value, "msgspec"))
            except LineError as error:
                self._pipeline.note(f"the server sent an event that cannot be read: {error}")
                continue
            there = event.connection
            if self._is_own(event):
                continue
            if there not in self._numbers:
                self._numbers[there] = self._number()
            here = self._numbers[there]
            if isinstance(event, Close | Drop):
                del self._numbers[there]
            moved = replace(event, time=max(0.0, event.time + self._offset), connection=here)
            self._pipeline.add(here, [moved])

    def _is_own(self, event: Event) -> bool:
        """True if an event belongs to a connection that is fed elsewhere."""
        number = event.connection
        if isinstance(event, Open) and self._own_agent is not None and event.facts.get("agent") == self._own_agent:
            self._own.add(number)
        is_own = number in self._own
        if isinstance(event, Close | Drop):
            self._own.discard(number)
        return is_own

    def lose(self) -> None:
        """Feed the loss of all open connections, after the watching connection was lost."""
        for number in self._numbers.values():
            self._pipeline.add(number, [Drop(self._pipeline.clock(), number, {"by": "server"})])
        self._numbers.clear()


_USUAL = ":8080"
"""Default address, which commands may omit."""


class ConnectSource(Source):
    """A `Source` for an LMTP server. Create it in a running event loop."""

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
        """Store the server; None if `connect_to` comes later. Raises `UsageError`.

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
        """True if the server shows other clients."""
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
        """Command that starts a stream from another terminal."""
        where = "" if self._requests is None else self._requests.where
        place = "" if where == _USUAL else f"-e {where} "
        return f'ask something in another terminal:  lmtool chat {place}"Hello there"' if self._watching else ""

    async def run(self, feed: Feed) -> None:
        """Connect, send the prompts, feed events. Raises `ConnectError` if the server is unreachable or lost.

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
