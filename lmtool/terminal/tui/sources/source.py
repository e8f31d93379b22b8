"""What the inspector watches: live connections or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.terminal.tui.sources.requests import TextToScore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from lmtool.core.types import GenerateRequest
    from lmtool.terminal.tui.continuation import Continuation, HttpContinuation
    from lmtool.terminal.tui.sources.event_pipeline import EventPipeline, Feed, RecordingStatus
    from lmtool.terminal.tui.sources.http_requests import HttpRequestSource
    from lmtool.terminal.tui.sources.requests import RequestSource
    from lmtool.trace.events import Event


class Source:
    """Base of whatever feeds the inspector, through a pipeline that records; requests go where there is a server.

    `run` is awaited once, and again when a request reached the server after it raised; everything else may be called
    while it runs and afterwards. `close` comes last.
    """

    live = True
    """Whether time goes on by itself; a file is played."""
    title = ""
    """What is watched, in a few words, such as `proxy :8081→:8080`."""
    no_requests = ""
    """Why `generate` is None and what to do about it; empty where it is not."""

    def __init__(self, pipeline: EventPipeline) -> None:
        self._pipeline = pipeline
        self._requests: RequestSource | None = None
        """Those of the inspector's own."""
        self._http: HttpRequestSource | None = None
        """The same over HTTP."""

    async def run(self, feed: Feed) -> None:
        """Feed what happens, until it is over. Raises `LmtoolError` when the remote cannot be reached or has gone."""
        raise NotImplementedError

    @property
    def advice(self) -> str:
        """How other programs start a stream, such as where to point a client; empty where they do not."""
        return ""

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request of the inspector's own; returns the label of its stream, such as `2/1`. None: it cannot.

        A text prompt is what a person typed: it becomes the ids that the model's chat template makes of it, where
        tokenizer or server know one. The request's `stream_id` does not matter. Raises `LmtoolError`.
        """
        return None if self._requests is None else self._requests.generate

    @property
    def continue_stream(self) -> Callable[[Continuation], Awaitable[str]] | None:
        """Go on from a token of a stream; otherwise as `generate`. Raises `UsageError` where the server cannot."""
        return None if self._requests is None else self._requests.continue_stream

    @property
    def continue_http(self) -> Callable[[HttpContinuation], Awaitable[str]] | None:
        """Go on from a token of an HTTP answer, over HTTP; None where no server can be asked so."""
        return None if self._http is None else self._http.continue_answer

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored, with the likeliest tokens beside it; otherwise as `generate`."""
        return None if self._requests is None else self._requests.score

    @property
    def score_answer(self) -> Callable[[HttpContinuation], Awaitable[str]] | None:
        """Have an HTTP answer scored over LMTP, behind the ids of its prompt; None where either is missing."""
        return None if self._http is None or self._requests is None else self._score_answer

    async def _score_answer(self, answer: HttpContinuation) -> str:
        assert self._http is not None
        assert self._requests is not None
        prompt, ids = await self._http.ids_of(answer)
        model = answer.body.get("model")
        text = TextToScore(prompt, ids, "", model=model if isinstance(model, str) else None)
        return await self._requests.score(text)

    def cancel(self, label: str) -> None:
        """End a stream of the inspector's own; others are left alone."""
        for requests in (self._requests, self._http):
            if requests is not None:
                requests.cancel(label)

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Write everything from now on as a trace. Raises `FileError`, `UsageError`.

        history: what was fed of streams that still run, which comes first; the trace begins with the first of it.
        """
        self._pipeline.start_recording(path, history)

    async def stop_recording(self) -> RecordingStatus | None:
        """End the recording in good order; what it has, None where there was none."""
        return await self._pipeline.stop_recording()

    @property
    def recording(self) -> RecordingStatus | None:
        """How far the recording is; None where nothing is recorded."""
        return self._pipeline.recording

    async def close(self) -> None:
        """End everything, the recording as well. Harmless when repeated."""
        for requests in (self._requests, self._http):
            if requests is not None:
                await requests.close()
        await self._pipeline.close()
