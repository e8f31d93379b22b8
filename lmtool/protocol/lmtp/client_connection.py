"""One client connection, from open to loss: sends requests in order, hands answers to their streams and requests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.core.errors import ConnectError, LmtoolError, RemoteProtocolError, RequestError, ServerError
from lmtool.core.streams import DeferredHandle, refuse
from lmtool.core.types import GenerateRequest, TokenOutput
from lmtool.protocol.lmtp.buffer_sender import BufferSender
from lmtool.protocol.lmtp.buffers import names_of
from lmtool.protocol.lmtp.client_session import BrokenFrame, ClientSession, StreamsAdvanced, error_of
from lmtool.protocol.lmtp.endpoint import CommandEndpoint
from lmtool.protocol.lmtp.messages import BufferAnswer, ModelInfoAnswer, ModelsAnswer, RequestFailed, UnknownMessage
from lmtool.protocol.lmtp.notices import Notices
from lmtool.protocol.lmtp.pending_answers import PendingAnswers
from lmtool.protocol.lmtp.remote_stream import RemoteStream
from lmtool.protocol.lmtp.transport import open_transport
from lmtool.protocol.lmtp.wait_limits import StreamLimits, WaitLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.types import LoadProgress, ScoreRequest
    from lmtool.protocol.lmtp.client_buffers import ClientBuffers
    from lmtool.protocol.lmtp.client_session import ClientEvent
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.protocol.lmtp.keepalive import PingLimits
    from lmtool.protocol.lmtp.messages import BufferRequest, SystemMessage, Watched
    from lmtool.protocol.lmtp.notices import Notice
    from lmtool.protocol.lmtp.transport import Transport

    Request: TypeAlias = GenerateRequest | ScoreRequest

OnFrame: TypeAlias = "Callable[[Literal['>', '<'], str], None]"
"""Called with every frame: `>` as it is sent, `<` as it is received."""

SILENCE = 5.0
"""Seconds without an answer to MODEL_INFO after which a server is taken for LMQL's, which may never give one."""

OFFER_SECONDS = 1.0
"""How long a request that only offers something, `resumable`, waits for that answer."""

_CLOSED = "the connection was closed by this client"


class ClientConnection:
    """One connection, from its opening to its loss. Needs a running event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        open_timeout: float | None,
        on_frame: OnFrame | None = None,
        on_progress: Callable[[LoadProgress], None] | None = None,
        on_ignored: Callable[[tuple[str, ...]], None] | None = None,
        on_system: Callable[[SystemMessage], None] | None = None,
        extended: bool = False,
        after: ClientConnection | None = None,
        buffers: ClientBuffers | None = None,
        pings: PingLimits | None = None,
        limits: WaitLimits | None = None,
    ) -> None:
        """after: a lost connection whose process must have ended first. buffers: of all connections of the client."""
        limits = limits or WaitLimits()
        self._endpoint = endpoint
        self._after = after
        self._pings = pings
        self._open_timeout = open_timeout
        self._on_frame = on_frame
        self._notices = Notices(on_progress, on_ignored, on_system)
        self.loop = asyncio.get_running_loop()
        self._session = ClientSession(extended=extended)
        self._streams: dict[str, RemoteStream] = {}
        self._stream_limits = StreamLimits(self.loop, self._streams, limits.stream, self.cancel)
        self._answers = PendingAnswers(self.loop, limits, starting=isinstance(endpoint, CommandEndpoint))
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._buffers = BufferSender(self._session, buffers, self._outgoing.put_nowait, limits.answer)
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self.lost = False
        """True if the connection is gone or never opened; a new one is needed then."""
        self.was_open = False
        """True if it ever opened."""
        self.reason: LmtoolError | None = None
        """Why it was lost; None until then."""
        self.closed = False  # whether `close` was called
        self._deciding: list[tuple[DeferredHandle, Request, Sink]] = []
        """Requests that wait until it is known whether the server speaks the extensions: until `_probed` is set."""
        self._probed = asyncio.Event()
        self._task = self.loop.create_task(self._live())
        self._probe: asyncio.Task[None] | None = None

    @property
    def extended(self) -> bool:
        """True if the server is known to speak the extensions."""
        return self._session.extended

    @property
    def plain(self) -> bool:
        """True if the server is known not to speak them."""
        return self._session.plain

    @property
    def answered(self) -> bool:
        """True if the server has sent anything that can be read."""
        return self._session.answered

    async def opened(self) -> None:
        """Return when the connection is open. Raises `ConnectError` or `TimeLimitError`."""
        await asyncio.shield(self._opened)

    async def over(self) -> None:
        """Return when the connection has ended, for whatever `reason`."""
        await asyncio.wait([self._task])

    async def close(self) -> None:
        """Close the connection; every stream and request ends with an error."""
        self.closed = True
        if not (self.lost and isinstance(self._endpoint, CommandEndpoint)):  # else its process is being ended already
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.lost:  # cancelled before it began
            self._lose(ConnectError(_CLOSED))
        if self._after is not None:
            await self._after.over()

    # Requests to the server.

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream; a request that cannot be written ends it with an error, through the sink.

        A request that uses an extension is sent once an answer to MODEL_INFO has shown that the server knows them.
        """
        try:
            undecided = self._session.undecided(request)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        if not undecided:
            return self._begin(request, sink)
        handle = DeferredHandle(request.stream_id, sink)
        self._deciding.append((handle, request, sink))
        if self._session.only_offers(request):
            self.loop.call_later(OFFER_SECONDS, self._send_undecided, handle)
        if self._probe is None:
            self._probe = self.loop.create_task(self._probe_dialect(request.model))
        return handle

    def _send_undecided(self, handle: DeferredHandle) -> None:
        """Begin a stream without what it offers, if nothing is known of the server yet."""
        for entry in [entry for entry in self._deciding if entry[0] is handle]:
            if not self._opened.done():
                self.loop.call_later(OFFER_SECONDS, self._send_undecided, handle)
                return
            self._deciding.remove(entry)
            handle.start(partial(self._begin, *entry[1:]))

    def _begin(self, request: Request, sink: Sink) -> StreamHandle:
        ending = self._session.ending(request)
        if ending is not None:
            handle = DeferredHandle(request.stream_id, sink)
            handle.end(TokenOutput(request.stream_id, finish_reason=ending))
            return handle
        if isinstance(request, GenerateRequest) and self._buffers.sent.may_change(request.into):
            return self._buffers.begin_settled(request, sink, self._begin)
        try:
            self._buffers.prepare(request)
            key, frame = self._session.open(request, progress=self._notices.want_progress)
        except LmtoolError as error:
            return refuse(request.stream_id, sink, error)
        self._buffers.sent.begin_stream(key, request)
        stream = RemoteStream(self, key, request, sink)
        self._streams[key] = stream
        self._stream_limits.start(stream, keep_deadline=self._session.plain)
        self._outgoing.put_nowait(frame)
        return stream

    async def _probe_dialect(self, model: str | None) -> None:
        """Find out whether the server speaks the extensions, then begin the streams that wait for it.

        An answer to MODEL_INFO shows it, or the progress of a load; without either it is assumed to be a plain server
        after `SILENCE` seconds.
        """
        failure: LmtoolError | None = None
        try:
            # A server whose dialect is known is asked for the names of its extensions.
            await self.ask_for(SILENCE, model, until=None if self._session.extended else self._probed)
        except ServerError:
            pass  # about the model: the streams will be told the same
        except LmtoolError as error:
            failure = error
        self._probe = None
        self._decide(failure)

    def _decide(self, failure: LmtoolError | None) -> None:
        """Begin the streams that wait for `_probe_dialect`, or end them all with an error."""
        waiting, self._deciding = self._deciding, []
        for handle, request, sink in waiting:
            if failure is not None:
                handle.fail(failure)
            else:
                handle.start(partial(self._begin, request, sink))

    async def ask_for(
        self, seconds: float, model: str | None, *, until: asyncio.Event | None = None
    ) -> Mapping[str, object] | str | None:
        """The answer to MODEL_INFO; None where the server sends neither that nor progress within `seconds`.

        until: what else ends the waiting, with None. Raises as `ask`, and as `opened`.
        """
        await self.opened()
        asking = self.loop.create_task(self.ask(model))
        enough = self.loop.create_task((until or asyncio.Event()).wait())
        try:
            await asyncio.wait({asking, enough}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self._session.assume_plain()
            return None if (enough.done() or self._session.plain) and not asking.done() else await asking
        finally:
            asking.cancel()
            enough.cancel()
            await asyncio.gather(asking, enough, return_exceptions=True)

    async def ask(self, model: str | None, *, listing: bool = False) -> Any:  # noqa: ANN401  # JSON
        """The `model_info` of a model, or the list of `models`.

        listing: request the list; a server without one sends the `model_info`. Raises `ServerError`, `ConnectError`, or
        `TimeLimitError` where neither an answer nor a report of the load comes within `WaitLimits`.
        """
        return await self._answer_to(*self._session.ask(model, progress=not listing, listing=listing))

    async def manage(self, load: str | None, unload: str | None) -> Any:  # noqa: ANN401  # JSON
        """The list of `models` once one is loaded or unloaded. Raises as `ask`."""
        return await self._answer_to(*self._session.manage(load, unload, progress=load is not None))

    async def change_buffer(self, request: BufferRequest) -> int:
        """A buffer's length once it was changed, also where the wait is cancelled. Raises as `ask`."""
        if request.drop and self._buffers.sent.drop_unsent(request.name):
            return 0
        await self.extensions(request.model)
        self._session.require_buffers()
        await self._buffers.settled(request.name)
        if self.reason is not None:
            raise self.reason
        return int(str(await self._answers.wait(self._buffers.change(request))))

    async def extensions(self, model: str | None = None) -> frozenset[str] | None:
        """Names of what the server knows beyond the LMTP document (EXT-6); None for one that does not say."""
        if self._session.asks_for_extensions:
            await self.ask_for(SILENCE, model)
        return self._session.extensions

    async def watch(self, on_watched: Callable[[Watched], None]) -> None:
        """Watch the server's other connections, as long as this one lasts (WATCH).

        on_watched: gets each answer; this returns with the first. Raises `AccessDeniedError`, `ConnectError`,
        `RequestError` for a server that does not know it.
        """
        known = await self.extensions()
        if self._session.plain or (known is not None and "watch" not in known):
            raise RequestError("the server does not know WATCH", "lmtool serve does")
        key, frame = self._session.watch()
        self._notices.on_watched[key] = on_watched
        await self._answer_to(key, frame)

    async def _answer_to(self, key: str, frame: str) -> Any:  # noqa: ANN401  # JSON
        self._outgoing.put_nowait(frame)
        try:
            return await self._answers.wait(key)
        finally:
            self._session.forget(key)

    def cancel(self, stream: RemoteStream, error: LmtoolError | None = None) -> None:
        """End a stream on both sides. error: why, where that is not its submitter's wish."""
        follow = self._buffers.sent.cancel_stream(stream.key)  # whether its ids are appended is known at its end
        frame = self._session.cancel(stream.key, stream.request.model, follow=follow)
        self._streams.pop(stream.key, None)
        if frame is not None and not self.lost:
            self._outgoing.put_nowait(frame)
        output = stream.ending(error)
        if error is None or not stream.buffers(output):
            # In the loop's next turn: no sink is called inside a call of its owner's.
            self.loop.call_soon(stream.sink, [output])

    # From open to loss.

    async def _live(self) -> None:
        transport = None
        error: LmtoolError = ConnectError(_CLOSED)
        try:
            if self._after is not None:
                await self._after.over()
                self._after = None
            transport = await open_transport(self._endpoint, open_timeout=self._open_timeout, pings=self._pings)
            if self._session.extended:
                transport.expect_pongs()
            self.was_open = True
            self._opened.set_result(None)
            await self._converse(transport)
        except LmtoolError as failed:
            error = failed
        finally:
            self._lose(error)
            if transport is not None:
                await transport.close()

    async def _converse(self, transport: Transport) -> None:
        """Send and receive until one of them fails. Raises why."""
        tasks = [self.loop.create_task(self._read(transport)), self.loop.create_task(self._write(transport))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, transport: Transport) -> None:
        while True:
            frame = await self._outgoing.get()
            if self._on_frame is not None:
                self._on_frame(">", frame)
            await transport.send(frame)

    async def _read(self, transport: Transport) -> None:
        while True:
            frame = await transport.receive()
            if self._on_frame is not None and isinstance(frame, str):
                self._on_frame("<", frame)
            events = self._session.receive(frame)
            if not self._probed.is_set() and (self._session.extended or self._session.plain):
                self._probed.set()
            if self._session.extended:
                transport.expect_pongs()
            self._handle(events)

    def _handle(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            match event:
                case StreamsAdvanced():
                    self._advance(event)
                case ModelInfoAnswer(key, answer) | ModelsAnswer(key, answer):
                    self._answers.settle(key, answer)
                case BufferAnswer():
                    self._buffers.sent.end_change(event.stream_id, event.length)
                    self._answers.settle(event.stream_id, event.length)
                case RequestFailed():
                    self._refuse_buffer(event)
                    self._answers.settle(event.stream_id, error_of(event))
                case BrokenFrame():
                    raise RemoteProtocolError(f"the server sent a frame that cannot be read: {event.reason}")
                case UnknownMessage():
                    pass
                case _:
                    self._note(event)

    def _note(self, event: Notice) -> None:
        """Take note of what is told beside answers, such as what holds a stream up."""
        if (stream := self._streams.get(event.stream_id)) is not None:
            stream.note(event, self.loop.time())
        self._answers.note(event)
        self._notices.show(event)

    def _advance(self, event: StreamsAdvanced) -> None:
        """Hand a frame's outputs over, each sink called once."""
        by_sink: dict[Sink, list[TokenOutput]] = {}
        now = self.loop.time()
        for key, output in zip(event.keys, event.outputs, strict=True):
            self._buffers.add_output(key, output)
            # A callback of the same frame may have cancelled it meanwhile.
            stream = self._streams.get(key)
            if stream is None:
                continue
            stream.heard = now
            if output.last:
                del self._streams[key]
            if not stream.buffers(output):
                by_sink.setdefault(stream.sink, []).append(output)
        for sink, outputs in by_sink.items():
            sink(outputs)

    def _refuse_buffer(self, event: RequestFailed) -> None:
        """End the streams that name a buffer which the server refuses to make again."""
        name = self._buffers.sent.refuse_change(event.stream_id)
        for stream in [one for one in self._streams.values() if name in names_of(one.request)]:
            self.cancel(stream, error_of(event))

    def _lose(self, error: LmtoolError) -> None:
        self.lost, self.reason = True, error
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # each request gets the error by itself, whether or not the opening is awaited
        self._handle(self._session.lost(error))
        self._decide(error)
        self._buffers.lose(error)
        self._stream_limits.close()
