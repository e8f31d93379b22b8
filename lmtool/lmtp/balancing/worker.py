"""One server behind a balancer: its connection, whether it answers, and how many streams it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import ConnectError, LmtoolError
from lmtool.lmtp.client import LmtpClient
from lmtool.lmtp.endpoint import CommandEndpoint, SocketEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.interfaces import Sink, StreamHandle
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.types import GenerateRequest, LoadProgress, ModelEntry, ModelInfo, ScoreRequest, TokenOutput

CHECK_SECONDS = 2.0
"""Between two questions whether it lives."""
MOST_PATIENCE = 30
"""Times that interval, the longest pause while a worker is asked in vain."""
ANSWER_SECONDS = 15.0
"""That a worker which was up has for an answer; a load may take any time."""

_log = logging.getLogger(__name__)


class Worker:
    """A server, ours (`stdio:COMMAND`, started and started again) or one at an address."""

    def __init__(
        self,
        number: int,
        endpoint: Endpoint,
        changed: Callable[[Worker], None],
        on_progress: Callable[[LoadProgress], None],
        *,
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """changed: called whenever `up` or `failure` has changed."""
        self.number = number
        self.owned = isinstance(endpoint, CommandEndpoint)
        """Whether its process is ours."""
        self.endpoint = replace(endpoint, on_log=self._log) if isinstance(endpoint, CommandEndpoint) else endpoint
        self.up = False
        self.was_up = False
        """Whether it ever was up."""
        self.only: str | None = None
        """The model that it served when it first was up; None where it had many, or none yet."""
        self.info: ModelInfo | None = None
        """Of its only model, as described when it last came up with that in memory."""
        self.models: Sequence[ModelEntry] = ()
        """What it serves, as it listed last."""
        self.failure: LmtoolError | None = None
        """Why it is not up."""
        self.running = 0
        """Streams that have not ended."""
        self._changed = changed
        self._on_progress = on_progress
        self._check_seconds = check_seconds
        self._answer_seconds = answer_seconds
        self._client = self._connect()
        self._sinks: dict[Sink, _Counted] = {}
        self._lost = asyncio.Event()
        self._vain = 0
        """How often it was asked in vain since it was up."""
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        """Closes the connection that was cut off last."""

    @property
    def name(self) -> str:
        """How people are told of it: an address, or a number where the process is ours."""
        where = f" ({self.endpoint.url})" if isinstance(self.endpoint, SocketEndpoint) else ""
        return f"worker {self.number + 1}{where}"

    @property
    def ready(self) -> bool:
        """Whether a request can be sent there now; a connection that was lost while nobody used it is noticed here."""
        if self.up and not self._client.connected:
            self.lose()
        return self.up

    def start(self) -> None:
        """Connect and go on asking whether it lives; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Close the connection; a process of ours ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(self._client.close(), *([] if self._closing is None else [self._closing]))

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """Start a stream there; see `TokenModel.submit`."""
        counted = self._sinks.get(sink)
        if counted is None:
            counted = self._sinks[sink] = _Counted(self, sink)
        counted.running += 1
        self.running += 1
        return self._client.submit(request, counted)

    async def ask(self, model: str | None) -> ModelInfo:
        """What it serves under this name. Raises as `LmtpClient.info`."""
        return await self._client.info(model)

    def ended(self, counted: _Counted, streams: int) -> None:
        """Count streams that ended."""
        self.running -= streams
        counted.running -= streams
        if not counted.running:
            self._sinks.pop(counted.sink, None)

    def lose(self, reason: str | None = None) -> None:
        """Note that the connection is gone: look at once whether it comes again. reason: as its streams were told."""
        self._lost.set()
        self._down(ConnectError(reason) if reason else self._client.loss or ConnectError("its connection is lost"))

    def _connect(self) -> LmtpClient:
        return LmtpClient(self.endpoint, on_progress=self._on_progress)

    def _log(self, line: str) -> None:
        """Tell what a process of ours writes to stderr."""
        _log.warning("%s: %s", self.name, line)

    async def _watch(self) -> None:
        while True:
            self._lost.clear()
            try:
                await self._ask_models()
            except LmtoolError as error:
                await self._failed(self._client.loss or error)  # which has its hints apart
            else:
                self._rise()
            await self._pause()

    async def _ask_models(self) -> None:
        """Take its list of models; where it was not up, wait for a load that is under way. Raises the load's error."""
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
        """Wait until it is time to ask again: at once after a loss, ever later while asking is in vain."""
        if self._vain:
            await asyncio.sleep(self._check_seconds * min(2 ** (self._vain - 1), MOST_PATIENCE))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._check_seconds):
                await self._lost.wait()

    async def _failed(self, error: LmtoolError) -> None:
        """A worker that does not answer is cut off: its streams end, a process of ours is replaced."""
        was_up = self.up
        self._vain += 1
        self._down(error)
        if was_up or self.owned:
            gone, self._client = self._client, self._connect()
            self._closing = asyncio.create_task(gone.close())
            await asyncio.shield(self._closing)

    def _rise(self) -> None:
        self._vain = 0
        if not self.up:
            if self.failure is not None:
                _log.warning("%s is up again", self.name)
            if not self.was_up and len(self.models) == 1:
                self.only = self.models[0].name
            self.up, self.was_up, self.failure = True, True, None
            self._changed(self)

    def _down(self, error: LmtoolError) -> None:
        changed = self.failure is None or (self.owned and error.message != self.failure.message)  # why it cannot start
        if self.up or changed:
            _log.warning("%s is down: %s", self.name, error.message)
        self.up, self.failure = False, error
        self._changed(self)


class _Counted:
    """A sink that knows how many of its streams run on one worker, and says whose loss ended them."""

    __slots__ = ("_worker", "running", "sink")

    def __init__(self, worker: Worker, sink: Sink) -> None:
        self._worker = worker
        self.sink = sink
        self.running = 0

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Pass outputs on."""
        lost = next((output for output in outputs if output.error_code == ConnectError.code), None)
        if lost is not None:
            sentence = f"{self._worker.name} was lost before the stream's end; send the request again"
            outputs = [
                replace(output, error=sentence) if output.error_code == ConnectError.code else output
                for output in outputs
            ]
        if streams := sum(output.last for output in outputs):
            self._worker.ended(self, streams)
        self.sink(outputs)
        if lost is not None:
            self._worker.lose(lost.error)
