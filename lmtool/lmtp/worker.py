"""One server behind a balancer: its connection, its health, and the streams that run on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import ConnectError, InvalidAnswerError, LmtoolError, OutOfMemoryError, OverloadedError, ServerError
from lmtool.lmtp.client import LmtpClient
from lmtool.lmtp.endpoint import CommandEndpoint, SocketEndpoint
from lmtool.routing.health import Health
from lmtool.routing.outcomes import OK, OVERLOADED, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.interfaces import Sink, StreamHandle
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.model_entry import ModelEntry
    from lmtool.types import GenerateRequest, LoadProgress, ModelInfo, ScoreRequest, StreamId, TokenOutput

CHECK_SECONDS = 2.0
"""Between two health checks."""
ANSWER_SECONDS = 15.0
"""Timeout of the health check of a worker that was up; a load may take any time."""

_OUTCOMES = {
    OverloadedError.code: OVERLOADED,
    OutOfMemoryError.code: Outcome("fault", "out of memory"),
    ServerError.code: Outcome("fault", "server error"),
    InvalidAnswerError.code: Outcome("fault", "malformed answer"),
}
"""What becomes of a worker by the code of a stream's error; any other is the request's own."""

_log = logging.getLogger(__name__)


class Worker:
    """A server, ours (`stdio:COMMAND`, started and started again) or one at an address."""

    def __init__(
        self,
        number: int,
        endpoint: Endpoint,
        on_change: Callable[[Worker], None],
        on_progress: Callable[[LoadProgress], None],
        *,
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """on_change: called whenever `up` or `error` has changed."""
        self.number = number
        self.owned = isinstance(endpoint, CommandEndpoint)
        """Whether its process is ours."""
        self.endpoint = replace(endpoint, on_log=self._log) if isinstance(endpoint, CommandEndpoint) else endpoint
        self.checks = Health(check_interval=check_seconds)
        """When it is checked again."""
        self.health = Health()
        """When streams may go there, by how streams ended; as of a member of a pool."""
        self.up = False
        """Whether it answered its last health check, and its connection is not known to be lost."""
        self.ever_up = False
        """Whether a check has ever succeeded."""
        self.error: LmtoolError | None = None
        """Why it is not up; None while it is, and before the first check."""
        self.sole_model: str | None = None
        """The model that it served when it first came up; None where it had many, or none yet."""
        self.info: ModelInfo | None = None
        """Of its only model, as described when it last came up with that in memory."""
        self.models: Sequence[ModelEntry] = ()
        """What it serves, as of the last health check."""
        self.running = 0
        """Streams that have not ended."""
        self._on_change = on_change
        self._on_progress = on_progress
        self._check_seconds = check_seconds
        self._answer_seconds = answer_seconds
        self._client = self._connect()
        self._sinks: dict[Sink, _CountingSink] = {}
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        """Closes the connection that was dropped last."""

    @property
    def name(self) -> str:
        """For people: a number, with the address unless the process is ours."""
        where = f" ({self.endpoint.url})" if isinstance(self.endpoint, SocketEndpoint) else ""
        return f"worker {self.number + 1}{where}"

    @property
    def ready(self) -> bool:
        """Whether a request can be sent there now; an idle connection that was lost is noticed here."""
        if self.up and not self._client.connected:
            self.lose()
        return self.up

    @property
    def available(self) -> bool:
        """Whether a request may go there: it is up, and does not rest."""
        return self.ready and self.health.available(self._now())

    @property
    def rest_seconds(self) -> float:
        """How long it still rests; 0 where it does not."""
        return self.health.rest_seconds(self._now())

    def start(self) -> None:
        """Connect, and check its health from now on; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Close the connection; a process of ours ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(self._client.close(), *([] if self._closing is None else [self._closing]))

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream there; see `TokenModel.submit`."""
        counting = self._sinks.get(sink)
        if counting is None:
            counting = self._sinks[sink] = _CountingSink(self, sink)
        counting.running += 1
        counting.unanswered[request.stream_id] = self.health.begin()
        self.running += 1
        return self._client.submit(request, counting)

    async def describe(self, model: str | None) -> ModelInfo:
        """What it serves under this name. Raises as `LmtpClient.info`."""
        return await self._client.info(model)

    async def manage(self, *, load: str | None = None, unload: str | None = None) -> None:
        """Have it load or unload a model. Raises as `LmtpClient.manage`."""
        self.models = await self._client.manage(load=load, unload=unload)

    def count_ended(self, counting: _CountingSink, streams: int) -> None:
        """Count streams that ended."""
        self.running -= streams
        counting.running -= streams
        if not counting.running:
            self._sinks.pop(counting.sink, None)

    def record(self, output: TokenOutput, *, probe: bool) -> None:
        """Record what a stream's first output, or its error, says of this worker; the loss of it is another matter.

        probe: whether it is the stream that went alone after a rest.
        """
        if output.error_code == ConnectError.code or output.finish_reason == "cancelled":
            self.health.release(probe=probe)
        else:
            self.health.record(_OUTCOMES.get(output.error_code or "", OK), self._now(), probe=probe)

    def lose(self, reason: str | None = None) -> None:
        """Record that the connection is gone, and check at once whether it comes back. reason: its streams' error."""
        self._lost.set()
        self._set_down(ConnectError(reason) if reason else self._client.loss or ConnectError("its connection is lost"))

    def _connect(self) -> LmtpClient:
        return LmtpClient(self.endpoint, on_progress=self._on_progress)

    def _log(self, line: str) -> None:
        """Log a line of the stderr of a process of ours."""
        _log.warning("%s: %s", self.name, line)

    async def _watch(self) -> None:
        while True:
            self._lost.clear()
            try:
                await self._check()
            except LmtoolError as error:
                await self._replace_client(self._client.loss or error)  # which has its hints apart
            else:
                self._set_up()
            await self._pause()

    async def _check(self) -> None:
        """List its models; while it is down, wait for a load in progress too. Raises the load's error."""
        self.models = await self._client.models(timeout=self._answer_seconds if self.ready else None)
        if self.up:
            return
        phases = {entry.phase for entry in self.models}
        for entry in self.models:
            if entry.phase in {"queued", "loading"} or phases == {"failed"}:
                await self._client.info(entry.name)
                self.models = await self._client.models()
                break
        loaded = len(self.models) == 1 and self.models[0].phase == "ready"
        self.info = await self._client.info(self.models[0].name) if loaded else None

    async def _pause(self) -> None:
        """Wait until the next check: a rest after one that failed; a loss cuts the wait after another short."""
        if rest := self.checks.rest_seconds(self._now()):
            await asyncio.sleep(rest)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._check_seconds):
                await self._lost.wait()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _replace_client(self, error: LmtoolError) -> None:
        """Drop the connection to a worker that does not answer: its streams end, a process of ours is replaced."""
        was_up = self.up
        self._set_down(error, failed_check=True)
        if was_up or self.owned:
            old, self._client = self._client, self._connect()
            self._closing = asyncio.create_task(old.close())
            await asyncio.shield(self._closing)

    def _set_up(self) -> None:
        self.checks.record(OK, self._now(), probe=self.checks.begin())
        if self.up:
            return
        if self.error is not None:
            _log.warning("%s is up again", self.name)
        if not self.ever_up and len(self.models) == 1:
            self.sole_model = self.models[0].name
        self.up, self.ever_up, self.error = True, True, None
        self._on_change(self)

    def _set_down(self, error: LmtoolError, *, failed_check: bool = False) -> None:
        is_new = self.error is None or (self.owned and error.message != self.error.message)  # why it cannot start
        if self.up or is_new:
            _log.warning("%s is down: %s", self.name, error.message)
        if failed_check:
            self.checks.record(Outcome("unreachable", error.code), self._now(), probe=self.checks.begin())
        self.up, self.error = False, error
        self._on_change(self)


class _CountingSink:
    """A sink that counts its streams on one worker, and names the worker in their error when it is lost."""

    __slots__ = ("_worker", "running", "sink", "unanswered")

    def __init__(self, worker: Worker, sink: Sink) -> None:
        self._worker = worker
        self.sink = sink
        self.running = 0
        self.unanswered: dict[StreamId, bool] = {}
        """Streams without an output yet, and whether each goes alone after a rest."""

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Pass outputs on."""
        for output in outputs:
            if output.stream_id in self.unanswered:
                self._worker.record(output, probe=self.unanswered.pop(output.stream_id))
            elif output.error_code is not None:
                self._worker.record(output, probe=False)
        lost = next((output for output in outputs if output.error_code == ConnectError.code), None)
        if lost is not None:
            sentence = f"{self._worker.name} was lost before the stream's end; send the request again"
            outputs = [
                replace(output, error=sentence) if output.error_code == ConnectError.code else output
                for output in outputs
            ]
        if streams := sum(output.last for output in outputs):
            self._worker.count_ended(self, streams)
        self.sink(outputs)
        if lost is not None:
            self._worker.lose(lost.error)
