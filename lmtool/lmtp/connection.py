"""One client's connection to a model, over anything that carries lines of text: session, streams, back-pressure."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from lmtool.errors import LmtoolError, OverloadedError, ServerError
from lmtool.interfaces import current_limits, failure
from lmtool.lmtp.codec import RefusedFrameError
from lmtool.lmtp.messages import Cancel, Generate, ModelInfoRequest, Score
from lmtool.lmtp.request_log import RequestLog, StreamRecord
from lmtool.lmtp.session import ServerSession, read
from lmtool.subprocesses.reading import beside, is_long

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lmtool.interfaces import Catalogue, ProgressSource, StreamHandle, TokenModel, Unsubscribe
    from lmtool.lmtp.config import ServerConfig
    from lmtool.types import LoadProgress, StreamId, TokenOutput


class Tap(Protocol):
    """Is shown what goes over connections, such as to record it; nothing it does may raise."""

    def opened(self, connection: int, agent: str) -> None:
        """A client has connected; agent: what it calls itself, empty where it does not tell."""

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """A frame was received (`>`) or is about to be sent (`<`)."""

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """A connection is over; code: the WebSocket close code, None where there was none."""


class Connection:
    """The server's side of one client, without its socket.

    Give each frame to `receive`, after `room` has returned; run `write` beside that; `close` at the end.
    """

    def __init__(
        self,
        number: int,
        model: TokenModel,
        config: ServerConfig,
        *,
        progress: ProgressSource | None,
        catalogue: Catalogue | None,
        log: Callable[[RequestLog], None],
        tap: Tap | None = None,
    ) -> None:
        self.number = number
        self.close_code: int | None = None
        """The WebSocket close code with which the client left; None while it is there, and over a pipe."""
        self._model = model
        self._config = config
        self._progress = progress
        self._catalogue = catalogue
        self._log = log
        self._tap = tap
        self._session = ServerSession(max_streams=config.max_streams, max_frame_bytes=config.max_sent_frame_bytes)
        self._handles: dict[StreamId, StreamHandle] = {}
        self._records: dict[StreamId, StreamRecord] = {}
        self._watching: dict[StreamId, Unsubscribe] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._paused = False
        self._closed = False
        self._refusal: LmtoolError | None = None
        self._sendable = asyncio.Event()
        self._roomy = asyncio.Event()
        self._roomy.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._flushed = asyncio.Event()
        self._flushed.set()
        # One object for all streams: the engine groups a step's outputs by sink.
        self._sink = self._deliver

    # What the client asks.

    async def receive(self, frame: str | bytes) -> None:
        """Do what a client's frame asks for; a long one is read by a helper."""
        if self._tap is not None:
            self._tap.frame(self.number, ">", frame)
        try:
            if is_long(frame):
                message = await beside(partial(read, limits=current_limits(self._model)), frame)
            else:
                message = read(frame)
        except LmtoolError as problem:
            self.refuse(problem)
            return
        event = self._session.take(message)
        match event:
            case Generate() | Score():
                self._start(event)
            case Cancel():
                handle = self._handles.get(event.stream_id)
                if handle is not None:
                    handle.cancel()
            case ModelInfoRequest():
                self._tell(event)
            case RefusedFrameError():
                self._log(RequestLog(self.number, event.stream_id or "null", event.command, error=event.message))
        self._changed()

    def _start(self, message: Generate | Score) -> None:
        stream_id = message.request.stream_id
        self._records[stream_id] = StreamRecord(self.number, message, time.perf_counter())
        self._idle.clear()
        if self._refusal is not None:
            self._deliver([failure(stream_id, self._refusal)])
            return
        if message.progress:
            self._watch(str(stream_id), message.request.model)
        handle = self._model.submit(message.request, self._sink)
        self._handles[stream_id] = handle
        if self._paused:
            handle.pause()

    def _tell(self, request: ModelInfoRequest) -> None:
        if request.listing and self._catalogue is not None:
            self._session.answer_list(request, self._catalogue.models())
            self._log(RequestLog(self.number, request.stream_id, "MODEL_INFO", end="stop", ignored=request.ignored))
            return
        if len(self._answers) >= self._config.max_streams:
            overload = OverloadedError(
                f"{len(self._answers)} MODEL_INFO requests wait on this connection, the most it may"
            )
            self._session.refuse(request.stream_id, overload)
            return
        if request.progress:
            self._watch(request.stream_id, request.model)
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._answers.add(task)
        self._idle.clear()
        task.add_done_callback(partial(self._answered, request))

    async def _answer(self, request: ModelInfoRequest) -> None:
        started = time.perf_counter()
        error = None
        try:
            self._session.answer(request, await self._model.info(request.model))
        except LmtoolError as failed:
            error = failed.message
            self._session.refuse(request.stream_id, failed)
        finally:
            self._unwatch(request.stream_id)
        seconds = time.perf_counter() - started
        end = None if error else "stop"
        self._log(
            RequestLog(
                self.number,
                request.stream_id,
                "MODEL_INFO",
                request.model,
                seconds=seconds,
                end=end,
                error=error,
                ignored=request.ignored,
            )
        )
        self._changed()

    def _answered(self, request: ModelInfoRequest, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            self._session.refuse(request.stream_id, ServerError(f"the server failed to describe its model: {bug!r}"))
            asyncio.get_running_loop().call_exception_handler({"message": "MODEL_INFO failed", "exception": bug})
            self._changed()
        self._note_idle()

    def _watch(self, stream_id: str, model: str | None) -> None:
        """Send the load's progress to a request; nothing at all when the model is there already (LOAD-2)."""
        if self._progress is None or stream_id in self._watching:
            return
        started = False

        def listener(progress: LoadProgress) -> None:
            nonlocal started
            if started or progress.phase != "ready":
                started = True
                self._session.report_progress(stream_id, progress)
                self._changed()

        self._watching[stream_id] = self._progress.subscribe(model, listener)

    def _unwatch(self, stream_id: StreamId) -> None:
        unsubscribe = self._watching.pop(stream_id, None)
        if unsubscribe is not None:
            unsubscribe()

    # What the model gives.

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        """Take one step's outputs for this client."""
        if self._closed:
            return
        now = time.perf_counter()
        for output in outputs:
            record = self._records.get(output.stream_id)
            if record is not None:
                record.add(output, now)
                if output.last:
                    ending = {"end": output.finish_reason, "error": output.error, "error_code": output.error_code}
                    self._log(record.log(now, **ending))
        for stream_id in self._session.outputs(outputs):
            self._end(stream_id)
        self._changed()

    def _end(self, stream_id: StreamId) -> None:
        self._records.pop(stream_id, None)
        self._unwatch(stream_id)
        handle = self._handles.pop(stream_id, None)
        if handle is not None:
            handle.cancel()  # harmless after the end, needed where only the session saw one
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._records and not self._answers:
            self._idle.set()

    def _changed(self) -> None:
        """Look at what waits to be sent: wake the writer, stop what makes more of it than the client takes."""
        waiting = self._session.waiting_bytes
        if waiting:
            self._flushed.clear()
            self._sendable.set()
        if waiting >= self._config.high_water_bytes and not self._paused and not self._closed:
            self._paused = True
            self._roomy.clear()
            for handle in list(self._handles.values()):
                handle.pause()

    def _relax(self) -> None:
        if self._paused and self._session.waiting_bytes <= self._config.high_water_bytes // 4:
            self._paused = False
            self._roomy.set()
            for handle in list(self._handles.values()):
                handle.resume()

    # What leaves.

    async def room(self) -> None:
        """Return when the client's unsent answers leave room for another request."""
        await self._roomy.wait()

    @property
    def streams(self) -> int:
        """Streams that have not ended."""
        return len(self._records)

    @property
    def busy(self) -> bool:
        """Whether a stream runs or a request waits."""
        return not self._idle.is_set()

    async def idle(self) -> None:
        """Return when no stream runs and no request waits."""
        await self._idle.wait()

    async def flushed(self) -> None:
        """Return when everything that was to be sent has been handed to the transport."""
        await self._flushed.wait()

    async def write(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send frames until `close`.

        Raises what `send` raises, and TimeoutError when it takes longer than the limit.
        """
        while not self._closed:
            await self._sendable.wait()
            self._sendable.clear()
            while (frame := self._session.next_frame()) is not None:
                if self._tap is not None:  # before it goes: the answer to it may come while `send` waits
                    self._tap.frame(self.number, "<", frame)
                async with asyncio.timeout(self._config.stall_seconds):
                    await send(frame)
                self._relax()
            self._flushed.set()

    def refuse(self, error: LmtoolError) -> None:
        """Answer a frame that could not even be read."""
        self._session.refuse(None, error)
        self._log(RequestLog(self.number, "null", "?", error=error.message))
        self._changed()

    def refuse_new(self, error: LmtoolError) -> None:
        """End every stream that is asked for from now on with this error."""
        self._refusal = error

    def fail(self, error: LmtoolError) -> None:
        """End all streams with an error, which is sent like any other."""
        now = time.perf_counter()
        for stream_id in self._session.fail_streams(error):
            self._log(self._records[stream_id].log(now, error=error.message))
            self._end(stream_id)
        self._changed()

    def close(self) -> None:
        """Cancel everything at once: the client is gone."""
        if self._closed:
            return
        self._closed = True
        now = time.perf_counter()
        for record in self._records.values():
            self._log(record.log(now, end="left"))
        self._records.clear()
        for handle in list(self._handles.values()):
            handle.cancel()
        self._handles.clear()
        for stream_id in list(self._watching):
            self._unwatch(stream_id)
        for task in self._answers:
            task.cancel()
        for event in (self._sendable, self._roomy, self._idle, self._flushed):
            event.set()
