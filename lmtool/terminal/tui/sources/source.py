"""Base of everything that the inspector watches, and a trace file, read while the screen stays responsive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.request_builder import Continuation, HttpContinuation, TextToScore
from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
from lmtool.terminal.tui.sources.http_requests import HttpRequestSource, http_requests
from lmtool.terminal.tui.sources.requests import RequestSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lmtool.core.types import GenerateRequest, ModelInfo
    from lmtool.inference.text.tokenizer import TextTokenizer
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.sources.event_pipeline import Feed, RecordingStatus
    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target


class Source:
    """Base of sources, which feed the inspector through a recording pipeline and send its requests to a server.

    `run` is awaited once, and again when a request reached the server after it raised; everything else may be called
    while it runs and afterwards. `close` comes last.
    """

    live = True
    """False for a file, which is played."""
    title = ""
    """Short description, such as `proxy :8081→:8080`."""
    no_requests = ""
    """Reason that LMTP requests are not taken, and the remedy; empty if they are."""

    def __init__(self, pipeline: EventPipeline) -> None:
        self._pipeline = pipeline
        self._requests: RequestSource | None = None
        """Sends the inspector's own requests over LMTP."""
        self._http: HttpRequestSource | None = None
        """Sends the inspector's own requests over HTTP."""

    async def run(self, feed: Feed) -> None:
        """Feed events until the source ends. Raises `LmtoolError` if the remote cannot be reached or is lost."""
        raise NotImplementedError

    @property
    def advice(self) -> str:
        """Instructions to start a stream from another program; empty if there are none."""
        return ""

    @property
    def takes_requests(self) -> bool:
        """True if a server takes LMTP requests from here."""
        return self._requests is not None

    @property
    def takes_http(self) -> bool:
        """True if a server can continue HTTP answers from here."""
        return self._http is not None

    async def send(self, request: GenerateRequest | Continuation | TextToScore | HttpContinuation) -> str:
        """Send a request of the inspector's own; the label of its stream, such as `2/1`.

        A text prompt is what a person typed: it becomes the ids that the model's chat template makes of it, if the
        tokenizer or the server has one. The request's `stream_id` is ignored. An `HttpContinuation` goes over HTTP; one
        with `is_score` is scored over LMTP after the ids of its prompt. Raises `LmtoolError`, such as `UsageError` if
        no server takes the request.
        """
        await self._ready()
        if isinstance(request, HttpContinuation):
            if self._http is None:
                raise UsageError("no server takes HTTP requests from here")
            if not request.is_score:
                return await self._http.continue_answer(request)
            prompt, ids = await self._http.ids_of(request)
            model = request.body.get("model")
            request = TextToScore(prompt, ids, "", model=model if isinstance(model, str) else None)
        if self._requests is None:
            raise UsageError(self.no_requests or "not connected yet")
        if isinstance(request, TextToScore):
            return await self._requests.score(request)
        if isinstance(request, Continuation):
            return await self._requests.continue_stream(request)
        return await self._requests.generate(request)

    async def _ready(self) -> None:
        """Wait until requests may be sent."""

    def cancel(self, label: str) -> None:
        """Cancel a stream of the inspector's own; no effect on others."""
        for requests in (self._requests, self._http):
            if requests is not None:
                requests.cancel(label)

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Write everything from now on as a trace. Raises `FileError`, `UsageError`.

        history: what was fed of streams that still run, which comes first; the trace begins with the first of it.
        """
        self._pipeline.start_recording(path, history)

    async def stop_recording(self) -> RecordingStatus | None:
        """End the recording with its end record; its final status, or None if there was none."""
        return await self._pipeline.stop_recording()

    @property
    def recording(self) -> RecordingStatus | None:
        """Progress of the recording; None if nothing is recorded."""
        return self._pipeline.recording

    async def close(self) -> None:
        """End everything, the recording as well. Harmless when repeated."""
        for requests in (self._requests, self._http):
            if requests is not None:
                await requests.close()
        await self._pipeline.close()


NO_REQUESTS = "a file answers nothing: open it with  --connect ws://HOST:PORT"
HTTP_ALONE = "the server of --connect speaks HTTP alone; streams of LMTP need  --connect ws://HOST:PORT"
SLICE = 0.008
"""Seconds of reading between two turns of the event loop."""


class FileSource(Source):
    """A `Source` for a trace, whose events go directly into `file.state`. Create it in a running event loop."""

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
        """The file and its state, complete once `run` has fed."""
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
        """Raise `UsageError` if the trace's ids mean other tokens on the server; add a note if that is unknown."""
        same, name = self._has_same_tokenizer(info, tokenizer), self.file.path.name
        if same is False:
            raise UsageError(
                f"{name} was made with another tokenizer than that of {info.model}: its ids mean other tokens there",
                "connect to a server of the same model",
            )
        if same is None:
            self._pipeline.note(f"nothing says that the ids of {name} mean the same tokens to {info.model}")

    def _has_same_tokenizer(self, info: ModelInfo, tokenizer: TextTokenizer | None) -> bool | None:
        """True if the trace's ids mean the same, by tokenizer hash or spelling; None if unknown."""
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

    async def _ready(self) -> None:
        """Wait until the file is read: requests come after its last event."""
        await self._is_loaded.wait()

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
        """Record branches from now on. Raises `FileError`, and `UsageError` without a server for branches."""
        if self._requests is None and self._http is None:
            raise UsageError(f"{self.file.path.name} is a recording already", f"{path} would be the same file again")
        super().start_recording(path, history)

    async def close(self) -> None:
        """Close the file and the connection."""
        await super().close()
        self.file.close()
