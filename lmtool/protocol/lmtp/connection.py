"""The server's side of one connection, over any transport: session, streams, back-pressure."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, OverloadedError, RequestError, ServerError
from lmtool.core.interfaces import current_limits
from lmtool.core.prompt_limits import limits_of
from lmtool.core.streams import Deadlines, failure
from lmtool.net.access.caller import is_admin
from lmtool.net.subprocesses.offload import is_long, run_in_subprocess
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.protocol.lmtp.buffered_model import BufferedModel
from lmtool.protocol.lmtp.codec import RefusedFrameError
from lmtool.protocol.lmtp.hold_ups import TICK, HoldUps
from lmtool.protocol.lmtp.load_subscriptions import LoadSubscriptions
from lmtool.protocol.lmtp.messages import (
    BufferRequest,
    Cancel,
    Generate,
    ModelInfoRequest,
    ModelsRequest,
    Score,
    WatchRequest,
    lists_only,
    subject_of,
)
from lmtool.protocol.lmtp.server_session import ServerEvent, ServerSession, parse
from lmtool.protocol.lmtp.stream_record import StreamRecord
from lmtool.protocol.lmtp.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lmtool.core.interfaces import StreamHandle
    from lmtool.core.types import LoadProgress, StreamId, TokenOutput
    from lmtool.protocol.lmtp.plugs import Plugs

    _Right = Callable[[], LmtoolError | None]
    _Question = ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest

_COMMANDS = {BufferRequest: "BUFFER", WatchRequest: "WATCH"}


class Connection:
    """The server's side of one client, without its socket.

    Pass each frame to `receive`, after `room` has returned; run `write` concurrently; `close` at the end.
    """

    def __init__(self, number: int, plugs: Plugs, may_watch: _Right = lambda: None, *, trusted: bool = False) -> None:
        """may_watch: why the client may not watch others; None where it may, and something is to be seen.

        trusted: see `ServerSession`.
        """
        self.number = number
        self.close_code: int | None = None
        """The WebSocket close code that the client sent; None before that, and over a pipe."""
        self._model, self._config = plugs.model, plugs.config
        self._catalogue, self._control, self._log, self._tap = plugs.catalogue, plugs.control, plugs.log, plugs.tap
        self._session = ServerSession(plugs.config, trusted=trusted)
        self._buffered = BufferedModel(plugs.model, plugs.config)
        self._handles: dict[StreamId, StreamHandle] = {}
        self._deadlines = Deadlines()
        self._hold_ups = HoldUps(shows_places=is_admin())
        self._next_look: asyncio.TimerHandle | None = None
        self._records: dict[StreamId, StreamRecord] = {}
        self._loads = LoadSubscriptions(plugs.progress, self._report_load)
        self._watching = Watching(number, plugs.traffic, may_watch, self._session, self._update_flow)
        self._answers: set[asyncio.Future[None] | asyncio.Future[int]] = set()
        self._paused = self._closed = False
        self._refusal: LmtoolError | None = None
        self._sendable = asyncio.Event()
        self._roomy, self._idle, self._flushed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self._roomy, self._idle, self._flushed):
            event.set()
        # One object for all streams: the engine groups a step's outputs by sink.
        self._sink = self._deliver

    # Requests of the client.

    async def receive(self, frame: str | bytes) -> None:
        """Carry out a client's frame; a long one is parsed in another process."""
        if self._tap is not None:
            self._tap.frame(self.number, ">", frame)
        try:
            if is_long(frame):
                message = await run_in_subprocess(partial(parse, limits=current_limits(self._model)), frame)
            else:
                message = parse(frame)
            await self._carry_out(self._session.handle_message(message))
        except LmtoolError as problem:
            self.refuse(problem)

    async def _carry_out(self, event: ServerEvent) -> None:
        match event:
            case Generate() | Score():
                self._start(event)
            case Cancel():
                self._cancel(event.stream_id)
            case ModelInfoRequest() | ModelsRequest():
                await self._describe(event)
            case BufferRequest():
                self._change_buffer(event)
            case WatchRequest():
                self._log_answer(event, error=self._watching.begin(event, self._refusal))
            case RefusedFrameError():
                self._log(RequestLog(self.number, event.stream_id or "null", event.command, error=event.message))
        self._update_flow()

    def _cancel(self, stream_id: str) -> None:
        if (handle := self._handles.get(stream_id)) is not None:
            handle.cancel()
        self._watching.end(stream_id)

    def _start(self, message: Generate | Score) -> None:
        stream_id = message.request.stream_id
        self._records[stream_id] = StreamRecord(self.number, message, time.perf_counter())
        self._idle.clear()
        if self._refusal is not None:
            self._deliver([failure(stream_id, self._refusal)])
            return
        if message.progress:
            self._watch(stream_id)
            self._loads.add(str(stream_id), message.request.model)
        handle = self._handles[stream_id] = self._buffered.submit(message.request, self._sink)
        self._deadlines.start(message.request, handle)
        if self._paused:
            handle.pause()

    async def _describe(self, request: ModelInfoRequest | ModelsRequest) -> None:
        if lists_only(request) and self._catalogue is not None:
            self._session.answer_list(request, self._catalogue.models())
            self._log_answer(request)
            return
        if self._refuse_another(request.stream_id):
            return
        if request.progress:
            self._loads.add(request.stream_id, subject_of(request))
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._answers.add(task)
        self._idle.clear()
        task.add_done_callback(partial(self._answered, request))
        if isinstance(request, ModelsRequest) and request.unload is not None:
            await asyncio.wait([task])  # what the client sends later must not keep the model in use (MOD-3)

    def _refuse_another(self, stream_id: str) -> bool:
        """Refuse a request where too many wait for their answers; whether that was so."""
        full = len(self._answers) >= self._config.max_streams
        if full:
            sentence = f"{len(self._answers)} MODEL_INFO, MODELS and BUFFER requests wait here, the most that may"
            self._session.refuse(stream_id, OverloadedError(sentence))
        return full

    def _change_buffer(self, request: BufferRequest) -> None:
        if self._refuse_another(request.stream_id):
            return
        change = self._buffered.change(request)
        self._answers.add(change)
        self._idle.clear()
        change.add_done_callback(partial(self._changed, request, time.perf_counter()))

    def _changed(self, request: BufferRequest, started: float, change: asyncio.Future[int]) -> None:
        self._answers.discard(change)
        if change.cancelled():  # the client has left
            return
        error, failed = None, change.exception()
        if failed is None:
            self._session.answer_buffer(request, change.result())
        else:
            problem = failed if isinstance(failed, LmtoolError) else _unexpected("BUFFER", failed)
            self._session.refuse(request.stream_id, problem)
            error = problem.message
        self._log_answer(request, seconds=time.perf_counter() - started, error=error)
        self._update_flow()
        self._note_idle()

    async def _answer(self, request: ModelInfoRequest | ModelsRequest) -> None:
        started, error = time.perf_counter(), None
        try:
            if isinstance(request, ModelsRequest):
                await self._manage(request)
            else:
                info = await self._model.info(request.model)
                limits = limits_of(request.model, current_limits(self._model))
                self._session.answer(request, info, limits.text_bytes if limits is not None else None)
        except LmtoolError as failed:
            error = failed.message
            self._session.refuse(request.stream_id, failed)
        finally:
            self._loads.remove(request.stream_id)
        self._log_answer(request, seconds=time.perf_counter() - started, error=error)
        self._update_flow()

    async def _manage(self, request: ModelsRequest) -> None:
        if self._control is None or self._catalogue is None:
            raise RequestError(
                "what is served here is not loaded and unloaded on request", "ask the server that has the models"
            )
        if request.load is not None:
            await self._control.load(request.load)
        if request.unload is not None:
            await self._control.unload(request.unload)
        self._session.answer_list(request, self._catalogue.models())

    def _log_answer(self, request: _Question, *, seconds: float = 0.0, error: str | None = None) -> None:
        command, end = _COMMANDS.get(type(request), "MODEL_INFO"), "stop"
        if isinstance(request, ModelsRequest):
            command, end = "MODELS", "load" if request.load else "unload" if request.unload else "stop"
        head, ending = (self.number, request.stream_id, command, subject_of(request)), end if error is None else None
        self._log(RequestLog(*head, seconds=seconds, end=ending, error=error, ignored=request.ignored))

    def _answered(self, request: ModelInfoRequest | ModelsRequest, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            self._session.refuse(request.stream_id, _unexpected("MODEL_INFO", bug))
            self._update_flow()
        self._note_idle()

    def _report_load(self, stream_id: str, progress: LoadProgress, told: bool) -> None:
        self._hold_ups.load(stream_id, ended=progress.phase in {"ready", "failed"})
        if told:
            self._session.report_progress(stream_id, progress)
            self._update_flow()

    # What holds streams up.

    def _watch(self, stream_id: StreamId) -> None:
        """Say what holds this stream up, from now on."""
        self._hold_ups.watch(stream_id, time.perf_counter())
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(TICK, self._look)

    def _look(self) -> None:
        """Say what is new, unless the client is behind with its reading; and look again later."""
        now = time.perf_counter()
        self._next_look = asyncio.get_running_loop().call_later(TICK, self._look) if self._hold_ups else None
        if self._paused or self._session.waiting_bytes:
            self._hold_ups.excuse(now)
            return
        for stream_id, message in self._hold_ups.news(self._handles, now):
            self._session.say(stream_id, message)
        self._update_flow()

    # Outputs of the model.

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        """Queue one step's outputs for this client."""
        if self._closed:
            return
        outputs, now = self._deadlines.apply(outputs), time.perf_counter()
        for output in outputs:
            record = self._records.get(output.stream_id)
            self._hold_ups.note_entry(output.stream_id, now)
            if record is not None:
                record.add(output, now)
                if output.last:
                    ending = {"end": output.finish_reason, "error": output.error, "error_code": output.error_code}
                    self._log(record.log(now, **ending))
        for stream_id in self._session.outputs(outputs):
            self._end(stream_id)
        self._update_flow()

    def _end(self, stream_id: StreamId) -> None:
        self._records.pop(stream_id, None)
        self._deadlines.forget(stream_id)
        self._hold_ups.forget(stream_id)
        self._loads.remove(stream_id)
        handle = self._handles.pop(stream_id, None)
        if handle is not None:
            handle.cancel()  # harmless after the end, needed where only the session saw one
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._records and not self._answers:
            self._idle.set()

    def _update_flow(self) -> None:
        """Wake the writer where something waits to be sent; pause the streams where too much does."""
        waiting = self._session.waiting_bytes
        if waiting:
            self._flushed.clear()
            self._sendable.set()
        if waiting >= self._config.high_water_bytes and not self._paused and not self._closed:
            self._paused = True
            self._roomy.clear()
            for handle in list(self._handles.values()):
                handle.pause()

    def _resume_if_drained(self) -> None:
        if self._paused and self._session.waiting_bytes <= self._config.high_water_bytes // 4:
            self._paused = False
            self._roomy.set()
            for handle in list(self._handles.values()):
                handle.resume()

    # Frames to the client.

    async def room(self) -> None:
        """Return when few enough answers wait to be sent that another request may be read."""
        await self._roomy.wait()

    @property
    def extended(self) -> bool:
        """True if the client knows the extensions (EXT-2)."""
        return self._session.extended

    @property
    def streams(self) -> int:
        """Streams that have not ended."""
        return len(self._records)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Of its buffers, and of answers that wait to be sent."""
        return self._buffered.memory_bytes, self._session.waiting_bytes

    @property
    def busy(self) -> bool:
        """True if a stream runs or a request waits."""
        return not self._idle.is_set()

    async def idle(self) -> None:
        """Return when no stream runs and no request waits."""
        await self._idle.wait()

    async def flushed(self) -> None:
        """Return when all frames have been handed to the transport."""
        await self._flushed.wait()

    async def write(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send frames until `close`. Raises what `send` raises."""
        while not self._closed:
            await self._sendable.wait()
            self._sendable.clear()
            while (frame := self._session.next_frame()) is not None:
                if self._tap is not None and not self._session.confidential:  # before: it may be answered meanwhile
                    self._tap.frame(self.number, "<", frame)
                await send(frame)
                self._resume_if_drained()
                self._watching.note_sent()
                if self._session.waiting_bytes:
                    await asyncio.sleep(0)  # others have their turn between the frames of a client that was behind
            self._flushed.set()

    def refuse(self, error: LmtoolError) -> None:
        """Answer a frame that could not be read."""
        self._session.refuse(None, error)
        self._log(RequestLog(self.number, "null", "?", error=error.message))
        self._update_flow()

    def refuse_new(self, error: LmtoolError, seconds: float = 0.0) -> None:
        """End every stream that is requested from now on with this error; those that run will be in `seconds`."""
        self._refusal = error
        if seconds > 0:
            for stream_id, message in self._hold_ups.draining(seconds):
                self._session.say(stream_id, message)
            self._update_flow()

    def fail(self, error: LmtoolError) -> None:
        """End all streams with an error, which is sent like any other; none are left once it is closed."""
        if self._closed:
            return
        for stream_id in self._session.fail_streams(error):
            self._log(self._records[stream_id].log(time.perf_counter(), error=error.message, error_code=error.code))
            self._end(stream_id)
        self._update_flow()

    def close(self) -> None:
        """Cancel everything at once: the client has left."""
        if self._closed:
            return
        self._closed = True
        for record in self._records.values():
            self._log(record.log(time.perf_counter(), end="left"))
        self._records.clear()
        self._deadlines.close()
        if self._next_look is not None:
            self._next_look.cancel()
        for handle in list(self._handles.values()):
            handle.cancel()
        self._handles.clear()
        self._loads.clear()
        self._watching.close()
        for task in list(self._answers):
            task.cancel()
        self._buffered.close()
        for event in (self._sendable, self._roomy, self._idle, self._flushed):
            event.set()


def _unexpected(command: str, bug: BaseException) -> ServerError:
    """The error that a client gets for a bug of ours, which is reported here."""
    asyncio.get_running_loop().call_exception_handler({"message": f"{command} failed", "exception": bug})
    return ServerError(f"the server failed to carry out {command}: {bug!r}")
