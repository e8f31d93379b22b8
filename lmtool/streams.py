"""Adapters of a stream's sink: an iterator over one stream, and a handle of a stream that starts later or never."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.errors import kind_of
from lmtool.types import TokenOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lmtool.errors import LmtoolError
    from lmtool.interfaces import Sink, StreamHandle, TokenModel
    from lmtool.types import GenerateRequest, ScoreRequest, StreamId


class Inbox:
    """The sink of one reader's streams, which it pauses while the reader is `high_water` outputs behind.

    Equal to itself only, so that a model hands it the outputs of all its streams together.
    """

    __slots__ = ("_arrived", "_handles", "_high_water", "_outputs", "_paused")

    def __init__(self, high_water: int = 256) -> None:
        self._high_water = high_water
        self._outputs: list[TokenOutput] = []
        self._arrived = asyncio.Event()
        self._handles: list[StreamHandle] = []
        self._paused = False

    def submit(self, model: TokenModel, request: GenerateRequest | ScoreRequest, sink: Sink | None = None) -> None:
        """Start a stream whose outputs come here. sink: one that passes them on to here."""
        self._handles.append(model.submit(request, sink or self))

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the outputs of one step, see `Sink`."""
        self._outputs += outputs
        self._arrived.set()
        if len(self._outputs) >= self._high_water and not self._paused:
            self._paused = True
            for handle in self._handles:
                handle.pause()

    async def take(self) -> list[TokenOutput]:
        """All outputs that have arrived since the last call, in order; waits for one."""
        await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        if self._paused:
            self._paused = False
            for handle in self._handles:
                handle.resume()
        return outputs

    def cancel(self) -> None:
        """End all streams that still run."""
        for handle in self._handles:
            handle.cancel()


async def stream(
    model: TokenModel, request: GenerateRequest | ScoreRequest, *, high_water: int = 256
) -> AsyncIterator[TokenOutput]:
    """Yield the outputs of one stream, for callers that have just one.

    Leaving the iterator early cancels the stream. A reader that falls `high_water` outputs behind pauses it until it
    has caught up. An output with `error` is yielded like any other and is the last one.
    """
    inbox = Inbox(high_water)
    inbox.submit(model, request)
    ended = False
    try:
        while not ended:
            for output in await inbox.take():
                ended = output.last
                yield output
    finally:
        if not ended:
            inbox.cancel()


def failure(stream_id: StreamId, error: LmtoolError) -> TokenOutput:
    """Return the output that ends a stream with this error: its sentence and what to do next."""
    return TokenOutput(
        stream_id, error=error.sentence, error_code=error.code, error_hints=error.hints, retry_after=error.retry_after
    )


def error_of(output: TokenOutput) -> LmtoolError:
    """The exception for an output that ends its stream with an error, with its hints where they are known."""
    kind, sentence = kind_of(output.error_code), output.error or "the stream failed"
    hints = output.error_hints
    return kind(sentence.removesuffix("".join(f"; {hint}" for hint in hints)), *hints)


class DeferredHandle:
    """Handle of a stream that cannot start yet: remembers a pause until `start`, then passes calls on.

    `fail` or `start` must be called at some time, once; both do nothing after `cancel`. Belongs to the event loop in
    which it was made.
    """

    __slots__ = ("_handle", "_loop", "_paused", "_sink", "_stream_id", "ended")

    def __init__(self, stream_id: StreamId, sink: Sink) -> None:
        self._stream_id = stream_id
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._handle: StreamHandle | None = None
        self._paused = False
        self.ended = False
        """Whether the stream ended before it started."""

    def start(self, submit: Callable[[], StreamHandle]) -> None:
        """Start the stream by calling `submit`, unless it was cancelled meanwhile."""
        if self.ended:
            return
        self._handle = submit()
        if self._paused:
            self._handle.pause()

    def fail(self, error: LmtoolError) -> None:
        """End the stream with `error`, at the next turn of the event loop."""
        self.end(failure(self._stream_id, error))

    def cancel(self) -> None:
        """End the stream, started or not."""
        if self._handle is not None:
            self._handle.cancel()
        else:
            self.end(TokenOutput(self._stream_id, finish_reason="cancelled"))

    def pause(self) -> None:
        """Withhold the stream's outputs, also once it has started."""
        self._paused = True
        if self._handle is not None:
            self._handle.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        if self._handle is not None:
            self._handle.resume()

    def end(self, output: TokenOutput) -> None:
        """End the stream with this output, at the next turn of the event loop."""
        if not self.ended:
            self.ended = True
            self._loop.call_soon(self._sink, [output])


def refuse(stream_id: StreamId, sink: Sink, error: LmtoolError) -> StreamHandle:
    """Answer a request that cannot be served: the stream ends with `error`, after the caller has returned."""
    handle = DeferredHandle(stream_id, sink)
    handle.fail(error)
    return handle
