"""One life of a client's connection: opens it, sends in order, hands what comes back to whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from lmtool.errors import AccessDeniedError, ConnectError, LmtoolError, RemoteProtocolError, ServerError
from lmtool.lmtp.channel import open_channel
from lmtool.lmtp.endpoint import CommandEndpoint
from lmtool.lmtp.messages import FieldsIgnored, ModelInfoAnswer, Progress, RequestFailed
from lmtool.lmtp.session import BrokenFrame, ClientSession, StreamsAdvanced
from lmtool.ports import refuse
from lmtool.types import TokenOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmtool.lmtp.channel import Channel
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.lmtp.session import ClientEvent
    from lmtool.ports import Sink, StreamHandle
    from lmtool.types import GenerateRequest, LoadProgress, ScoreRequest


class RemoteStream:
    """The hold on one stream of a server.

    The wire has no way to pause one stream of several, so a paused stream's outputs are kept here: at most as many as
    the request allows tokens. Neighbours are not held up.
    """

    __slots__ = ("_held", "_link", "_paused", "ended", "key", "request", "sink")

    def __init__(self, link: Link, key: str, request: GenerateRequest | ScoreRequest, sink: Sink) -> None:
        self._link = link
        self.key = key
        """The stream's id on the wire."""
        self.request = request
        self.sink = sink
        self.ended = False
        """Whether the last output was handed over, or is about to be."""
        self._paused = False
        self._held: list[TokenOutput] = []

    def cancel(self) -> None:
        """End the stream here at once, and at the server when the message gets there."""
        if not self.ended:
            self.ended = True
            self._held.clear()
            self._link.cancel(self)

    def pause(self) -> None:
        """Keep outputs back until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Hand over what was kept back, in the loop's next turn, and go on."""
        self._paused = False
        if self._held:
            self._link.loop.call_soon(self._release)

    def _release(self) -> None:
        if self._held and not self._paused:
            held, self._held = self._held, []
            self.ended = held[-1].last
            self.sink(held)

    def keeps(self, output: TokenOutput) -> bool:
        """Whether an output is kept back: while paused, and until what was kept before has been handed over."""
        if self._paused or self._held:
            self._held.append(output)
            return True
        self.ended = output.last
        return False


class Link:
    """One connection, from its opening to its loss. Needs a running event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        open_timeout: float | None,
        on_frame: Callable[[Literal[">", "<"], str], None] | None,
        on_progress: Callable[[LoadProgress], None] | None,
        on_ignored: Callable[[tuple[str, ...]], None] | None,
        after: Link | None = None,
    ) -> None:
        """after: a connection that was lost, and must be over before this one opens."""
        self._endpoint = endpoint
        self._after = after
        self._open_timeout = open_timeout
        self._on_frame = on_frame
        self._on_progress = on_progress
        self._on_ignored = on_ignored
        self.loop = asyncio.get_running_loop()
        self._session = ClientSession()
        self._streams: dict[str, RemoteStream] = {}
        self._answers: dict[str, asyncio.Future[Mapping[str, object] | str]] = {}
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self.lost = False
        """Whether the connection is gone or never came about; a new link is needed then."""
        self.was_open = False
        """Whether there was a server at the other end."""
        self.reason: LmtoolError | None = None
        """Why it was lost; None until then."""
        self.closed = False
        """Whether `close` was called: then it is this side that ended it."""
        self._task = self.loop.create_task(self._live())

    async def opened(self) -> None:
        """Return when the connection is open. Raises `ConnectError` or `TimeLimitError`."""
        await asyncio.shield(self._opened)

    async def over(self) -> None:
        """Return when the connection is over, however that came; `reason` is known then."""
        await asyncio.wait([self._task])

    async def close(self) -> None:
        """Close the connection; every stream and request ends with an error."""
        self.closed = True
        if not (self.lost and isinstance(self._endpoint, CommandEndpoint)):  # else its process is being ended already
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.lost:  # cancelled before it began
            self._lose(_closed())
        if self._after is not None:
            await self._after.over()

    # What is asked of the server.

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream. Like every failure of a stream, one to write the request comes through the sink."""
        try:
            key, frame = self._session.open(request, progress=self._on_progress is not None)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        stream = RemoteStream(self, key, request, sink)
        self._streams[key] = stream
        self._outgoing.put_nowait(frame)
        return stream

    async def ask(self, model: str | None) -> Mapping[str, object] | str:
        """Ask MODEL_INFO. Raises `ServerError` or `ConnectError`."""
        key, frame = self._session.ask(model, progress=self._on_progress is not None)
        answer: asyncio.Future[Mapping[str, object] | str] = self.loop.create_future()
        self._answers[key] = answer
        self._outgoing.put_nowait(frame)
        try:
            return await answer
        finally:
            self._session.forget(key)
            self._answers.pop(key, None)

    def cancel(self, stream: RemoteStream) -> None:
        """End a stream on both sides."""
        frame = self._session.cancel(stream.key, stream.request.model)
        self._streams.pop(stream.key, None)
        if frame is not None and not self.lost:
            self._outgoing.put_nowait(frame)
        # In the loop's next turn: no sink is called inside a call of its owner's.
        self.loop.call_soon(stream.sink, [TokenOutput(stream.request.stream_id, finish_reason="cancelled")])

    # The connection's life.

    async def _live(self) -> None:
        channel = None
        error: LmtoolError = _closed()
        try:
            if self._after is not None:
                await self._after.over()
                self._after = None
            channel = await open_channel(self._endpoint, open_timeout=self._open_timeout)
            self.was_open = True
            self._opened.set_result(None)
            await self._converse(channel)
        except LmtoolError as failed:
            error = failed
        finally:
            self._lose(error)
            if channel is not None:
                await channel.close()

    async def _converse(self, channel: Channel) -> None:
        """Send and receive until one of them fails. Raises why."""
        tasks = [self.loop.create_task(self._read(channel)), self.loop.create_task(self._write(channel))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, channel: Channel) -> None:
        while True:
            frame = await self._outgoing.get()
            if self._on_frame is not None:
                self._on_frame(">", frame)
            await channel.send(frame)

    async def _read(self, channel: Channel) -> None:
        while True:
            frame = await channel.receive()
            if self._on_frame is not None and isinstance(frame, str):
                self._on_frame("<", frame)
            self._handle(self._session.receive(frame))

    def _handle(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            match event:
                case StreamsAdvanced():
                    self._advance(event)
                case ModelInfoAnswer():
                    self._settle(event.stream_id, event.model_info)
                case RequestFailed():
                    self._settle(event.stream_id, _error(event))
                case Progress() if self._on_progress is not None:
                    self._on_progress(event.progress)
                case FieldsIgnored() if self._on_ignored is not None:
                    self._on_ignored(event.fields)
                case BrokenFrame():
                    raise RemoteProtocolError(f"the server sent a frame that cannot be read: {event.reason}")

    def _advance(self, event: StreamsAdvanced) -> None:
        """Hand a frame's outputs over, each sink called once."""
        by_sink: dict[Sink, list[TokenOutput]] = {}
        for key, output in zip(event.keys, event.outputs, strict=True):
            # A callback of the same frame may have cancelled it meanwhile.
            stream = self._streams.get(key)
            if stream is None:
                continue
            if output.last:
                del self._streams[key]
            if not stream.keeps(output):
                by_sink.setdefault(stream.sink, []).append(output)
        for sink, outputs in by_sink.items():
            sink(outputs)

    def _settle(self, key: str | None, answer: Mapping[str, object] | str | LmtoolError) -> None:
        future = self._answers.get(key) if key is not None else None
        if future is None or future.done():
            return
        if isinstance(answer, LmtoolError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _lose(self, error: LmtoolError) -> None:
        self.lost, self.reason = True, error
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # nobody has to wait for the opening: each request is told by itself
        self._handle(self._session.lost(error))


def _closed() -> ConnectError:
    return ConnectError("the connection was closed by this client")


def _error(event: RequestFailed) -> LmtoolError:
    kinds = {ConnectError.code: ConnectError, AccessDeniedError.code: AccessDeniedError}
    return kinds.get(event.error_code or "", ServerError)(event.error)
