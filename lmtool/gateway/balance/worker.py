"""One server behind a balancer: its connection, its health, and the streams that run on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lmtool.core.errors import (
    ConnectError,
    InvalidAnswerError,
    LmtoolError,
    OutOfMemoryError,
    OverloadedError,
    ServerError,
)
from lmtool.core.outcomes import OK, OVERLOADED, Outcome
from lmtool.gateway.routing.health import Health
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.endpoint import CommandEndpoint, SocketEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo, ScoreRequest, StreamId, TokenOutput
    from lmtool.protocol.lmtp.endpoint import Endpoint

CHECK_SECONDS = 2.0
"""Between two health checks."""
ANSWER_SECONDS = 15.0
"""Timeout of the health check of a worker; its load may take longer, as long as it reports progress."""

_OUTCOMES = {
    OverloadedError.code: OVERLOADED,
    OutOfMemoryError.code: Outcome("fault", "out of memory"),
    ServerError.code: Outcome("fault", "server error"),
    InvalidAnswerError.code: Outcome("fault", "malformed answer"),
}
"""What becomes of a worker by the code of a stream's error; any other is the request's own."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Description:
    """What a worker has told of one of its models; another one after it was lost, or has unloaded the model."""

    info: ModelInfo | None = None
    """None until it has answered."""
    asking: asyncio.Task[None] | None = None
    answer: asyncio.Task[ModelInfo] | None = None
    """While it is asked."""

    @property
    def fingerprint(self) -> str | None:
        """See `lmtool.core.fingerprint`; None where it is not known."""
        return None if self.info is None else self.info.fingerprint


class Worker:
    """A server, ours (`stdio:COMMAND`, started and started again) or one at an address."""

    def __init__(
        self,
        number: int,
        endpoint: Endpoint,
        on_change: Callable[[Worker], None],
        on_progress: Callable[[LoadProgress], None],
        *,
        on_described: Callable[[Worker, ModelInfo], None] = lambda _worker, _info: None,
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """on_change: called whenever `checked`, `up`, `error` or a description changes; on_described: with that."""
        self.number = number
        self.owned = isinstance(endpoint, CommandEndpoint)
        """True if its process is ours."""
        self.endpoint = replace(endpoint, on_log=self._log) if isinstance(endpoint, CommandEndpoint) else endpoint
        self.checks = Health(check_interval=check_seconds)
        """When it is checked again."""
        self.health = Health()
        """When streams may go there, by how streams ended; as of a member of a pool."""
        self.up = False
        """True if it answered its last health check, and its connection is not known to be lost."""
        self.ever_up = False
        """True if a check has ever succeeded."""
        self.checked = False
        """True if its first list has come, or could not be had."""
        self.error: LmtoolError | None = None
        """Why it is not up; None while it is, and before the first check."""
        self.models: Sequence[ModelEntry] = ()
        """What it serves, as of the last health check."""
        self.running = 0
        """Streams that have not ended."""
        self._on_change = on_change
        self._on_progress = on_progress
        self._on_described = on_described
        self._check_seconds = check_seconds
        self._answer_seconds = answer_seconds
        self._client = self._connect()
        self._sinks: dict[Sink, _CountingSink] = {}
        self._descriptions: dict[str | None, Description] = {}
        """By the names that its models were asked for."""
        self._lost = asyncio.Event()
        self._ending: ConnectError | None = None
        """Why its server ends, as that said over the connection: until the end it still answers checks."""
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
        """True if a request can be sent there now; an idle connection that was lost is noticed here."""
        if self.up and not self._client.connected:
            self.lose()
        return self.up

    @property
    def available(self) -> bool:
        """True if a request may go there: it is up, and does not rest."""
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
        self._forget(self._descriptions)
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

    def entry(self, name: str | None) -> ModelEntry | None:
        """What it has listed of the model of a name, aliases left out; None where it is not in the list."""
        return next((entry for entry in self.models if entry.name == name), None)

    def description(self, model: str | None) -> Description:
        """What it has told of its model of a name."""
        return self._descriptions.setdefault(model, Description())

    def learn(self, model: str | None) -> Description:
        """Ask for the description of a model, unless it is known; its load is waited for. What is known now.

        Requests that are sent afterwards are read after the question, so that it is answered before they are.
        """
        description = self.description(model)
        if description.info is None and description.asking is None and self._client.extended:
            description.asking = asyncio.get_running_loop().create_task(self._learn(model))
        return description

    async def _learn(self, model: str | None) -> None:
        try:
            await self.describe(model)
        except LmtoolError as error:  # a request for the model gets the same error
            _log.debug("%s does not describe %s: %s", self.name, model, error.message)

    async def describe(self, model: str | None) -> ModelInfo:
        """What it serves under this name; simultaneous callers share one request. Raises as `LmtpClient.info`."""
        description = self.description(model)
        if description.answer is None:
            description.answer = asyncio.get_running_loop().create_task(self._describe(model, description))
            description.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return await asyncio.shield(description.answer)

    async def _describe(self, model: str | None, description: Description) -> ModelInfo:
        try:
            info = await self._client.info(model)
        finally:
            description.answer = None
        is_new, description.info = description.info is None, info
        if is_new and self._descriptions.get(model) is description:
            self._on_described(self, info)
            self._on_change(self)
        return info

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
        if reason and self._client.connected:
            self._ending = ConnectError(reason)
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
            ending, self._ending = self._ending, None
            try:
                if ending is not None:
                    raise ending  # as a check that failed
                await self._check()
            except LmtoolError as error:
                await self._replace_client(self._client.loss or error, drop=ending is not None)  # hints are apart
            else:
                self._set_up()
            await self._pause()

    async def _check(self) -> None:
        """List its models; while it is down and has none in memory, wait for a load too. Raises the load's error."""
        starting = self.owned and not self.ready  # a process imports libraries before it reads anything
        self.models = await self._client.models(timeout=None if starting else self._answer_seconds)
        if not self.checked:
            self.checked = True
            self._on_change(self)
        self._forget(name for name, known in self._descriptions.items() if not self._holds(name, known))
        if self.up:
            return
        phases = {entry.phase for entry in self.models}
        for entry in () if "ready" in phases else self.models:
            if entry.phase in {"queued", "loading"} or phases == {"failed"}:
                await self._client.info(entry.name)
                self.models = await self._client.models()
                break
        if len(self.models) == 1 and self.models[0].phase == "ready":
            await self.describe(self.models[0].name)

    def _holds(self, name: str | None, description: Description) -> bool:
        """True if what it has told of a model is still true, or on its way."""
        if description.asking is not None and not description.asking.done():
            return True
        entry = self.entry(name)
        return description.info is not None and entry is not None and entry.phase == "ready"

    def _forget(self, names: Iterable[str | None]) -> None:
        """Drop descriptions."""
        for name in list(names):
            asking = self._descriptions.pop(name).asking
            if asking is not None:
                asking.cancel()

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

    async def _replace_client(self, error: LmtoolError, *, drop: bool) -> None:
        """Drop the connection to a worker that does not answer: its streams end, a process of ours is replaced.

        drop: also that to a server elsewhere which was known to be down.
        """
        was_up = self.up
        self._set_down(error, failed_check=True)
        if was_up or self.owned or drop:
            old, self._client = self._client, self._connect()
            self._closing = asyncio.create_task(old.close())
            await asyncio.shield(self._closing)

    def _set_up(self) -> None:
        self.checks.record(OK, self._now(), probe=self.checks.begin())
        if self.up:
            return
        if self.error is not None:
            _log.warning("%s is up again", self.name)
        self.up, self.ever_up, self.error = True, True, None
        self._on_change(self)

    def _set_down(self, error: LmtoolError, *, failed_check: bool = False) -> None:
        is_new = self.error is None or (self.owned and error.message != self.error.message)  # why it cannot start
        if self.up or is_new:
            _log.warning("%s is down: %s", self.name, error.message)
        self.checked = True
        if failed_check:
            self.checks.record(Outcome("unreachable", error.code), self._now(), probe=self.checks.begin())
        self.up, self.error = False, error
        self._forget(self._descriptions)  # another server may come up there
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
