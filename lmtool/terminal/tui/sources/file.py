"""A trace file, read into a state while the screen stays alive; branches of it run on a server named beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.http_requests import HttpRequestSource, http_requests
from lmtool.terminal.tui.sources.requests import RequestSource
from lmtool.terminal.tui.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from lmtool.core.types import GenerateRequest, ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.continuation import Continuation, HttpContinuation
    from lmtool.terminal.tui.sources.event_pipeline import Feed
    from lmtool.terminal.tui.sources.requests import TextToScore
    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target

NO_REQUESTS = "a file answers nothing: open it with  --connect ws://HOST:PORT"
HTTP_ALONE = "the server of --connect speaks HTTP alone; streams of LMTP need  --connect ws://HOST:PORT"
SLICE = 0.008
"""Seconds of reading between two turns of the event loop."""


class FileSource(Source):
    """A trace; a `Source` whose events go into `file.state` directly. Make it inside a running event loop."""

    live = False

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        endpoint: Endpoint | None = None,
        http: Target | None = None,
    ) -> None:
        """Read the header. endpoint: the server where branches run. Raises `FileError`.

        http: where those of HTTP answers run, where that is another address.
        """
        super().__init__(EventPipeline(warn, at="client"))
        self.file = TraceFile(path)
        """What is read, with its state; whole once `run` has fed."""
        self.title = f"file {path.name}"
        self._warn = warn
        self._is_loaded = asyncio.Event()
        if http is not None:
            self._http = HttpRequestSource(http, self._pipeline, self._next_number)
        elif endpoint is not None:
            self._http = http_requests(endpoint, self._pipeline, self._next_number)
        if endpoint is None:
            self.no_requests = NO_REQUESTS if http is None else HTTP_ALONE
        else:
            self._requests = RequestSource(
                endpoint, self._pipeline, self._next_number, find_tokenizer=find_tokenizer, check=self._check
            )

    def _check(self, info: ModelInfo, tokenizer: TextTokenizer | None) -> None:
        """Raise `UsageError` where the trace's ids mean something else on the server; note where that is unknown."""
        same, name = self._has_same_tokenizer(info, tokenizer), self.file.path.name
        if same is False:
            raise UsageError(
                f"{name} was made with another tokenizer than that of {info.model}: its ids mean other tokens there",
                "connect to a server of the same model",
            )
        if same is None:
            self._pipeline.note(f"nothing says that the ids of {name} mean the same tokens to {info.model}")

    def _has_same_tokenizer(self, info: ModelInfo, tokenizer: TextTokenizer | None) -> bool | None:
        """Whether the trace's ids mean the same, by the tokenizer's hash, else by their spellings; None: not known."""
        model = self.file.header.model
        recorded, size = model.get("tokenizer"), model.get("vocab_size")
        sha256 = recorded.get("sha256") if isinstance(recorded, dict) else None
        if sha256 and info.tokenizer is not None:
            return bool(sha256 == info.tokenizer.sha256)
        if tokenizer is not None and (differs := self.file.state.texts.differences(tokenizer.piece)):
            return not any(differs.values())
        return False if None not in (size, info.vocab_size) and size != info.vocab_size else None

    def _next_number(self) -> int:
        state = self.file.state
        return 1 + max((stream.connection for stream in state.streams), default=state.connections)

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request to the server beside the file, once the file is read."""
        return None if self._requests is None else self._generate

    @property
    def continue_stream(self) -> Callable[[Continuation], Awaitable[str]] | None:
        """Go on from a token of a stream there."""
        return None if self._requests is None else self._continue_stream

    @property
    def continue_http(self) -> Callable[[HttpContinuation], Awaitable[str]] | None:
        """Go on from a token of an HTTP answer there."""
        return None if self._http is None else self._continue_http

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored there."""
        return None if self._requests is None else self._score

    async def _generate(self, request: GenerateRequest) -> str:
        await self._is_loaded.wait()
        assert self._requests is not None
        return await self._requests.generate(request)

    async def _continue_stream(self, continuation: Continuation) -> str:
        await self._is_loaded.wait()
        assert self._requests is not None
        return await self._requests.continue_stream(continuation)

    async def _continue_http(self, continuation: HttpContinuation) -> str:
        await self._is_loaded.wait()
        assert self._http is not None
        return await self._http.continue_answer(continuation)

    async def _score(self, text: TextToScore) -> str:
        await self._is_loaded.wait()
        assert self._requests is not None
        return await self._requests.score(text)

    async def run(self, feed: Feed) -> None:
        """Read the file, then be over; answers to branches are fed later as well. Raises `FileError`."""
        while not self.file.load(SLICE):  # noqa: ASYNC110 - the keyboard gets its turn; nothing is waited for
            await asyncio.sleep(0)
        self._pipeline.set_clock(self.file.state.now)
        self._pipeline.feed_to(feed)
        self._is_loaded.set()
        while not self.file.verify(SLICE):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        ending = self.file.ending
        if ending is not None and ending.state != "complete":
            self._warn(f"{self.file.path.name} is {ending.state}: {ending.reason}")

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record branches from now on. Raises `UsageError` where there are none, `FileError`."""
        if self._requests is None and self._http is None:
            raise UsageError(f"{self.file.path.name} is a recording already", f"{path} would be the same file again")
        super().start_recording(path, history)

    async def close(self) -> None:
        """Close the file and the connection."""
        await super().close()
        self.file.close()
