"""A stream of one of our models that outlives its member: another one with the same fingerprint brings the rest."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ConnectError, LmtoolError, TimeLimitError
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.streams import DeferredHandle, error_of, failure
from lmtool.core.types import GenerateRequest
from lmtool.gateway.pools.failures import outcome_of_error
from lmtool.protocol.http.generation import Generation
from lmtool.protocol.providers.outcomes import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.interfaces import Sink, StreamHandle, TokenModel
    from lmtool.core.outcomes import Outcome
    from lmtool.core.types import ModelInfo, ScoreRequest, TokenOutput
    from lmtool.gateway.pools.caller import Caller
    from lmtool.protocol.http.models import Served
    from lmtool.protocol.http.requests import Call
    from lmtool.protocol.providers.answer_events import AnswerEvent

_OPTIONS = ResumeOptions(retries=1 << 30, backoff=0.0)
"""The pool pauses, and gives up, by itself."""


SHORTEST = 0.001
"""Seconds, of a deadline that a member is given."""


class MemberLostError(Exception):
    """The member that the stream ran on is lost; another one may go on with it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.words)
        self.outcome = outcome


class TokenStream:
    """The answer of a model as a `Generation` whose stream runs on one member after another, see `Resuming`."""

    def __init__(self, served: Served, call: Call, caller: Caller) -> None:
        self.fingerprint = served.info.fingerprint
        self._members = _Members(served.model, call.model, caller)
        model = Resuming(self._members, _OPTIONS, self._members.note)
        self.generation = Generation(replace(served, model=model), call)
        self.collected: list[AnswerEvent] = []
        """Of a whole answer, what has come of it."""
        self._steps = self.generation.steps()
        self._step: asyncio.Task[list[TokenOutput] | None] | None = None
        """The outputs that are waited for, whichever member brings them."""
        self._taken = 0
        """Outputs that `take` has returned."""

    @property
    def tokens(self) -> int:
        """Generated so far."""
        return self.generation.usage().completion_tokens

    @property
    def resumable(self) -> bool:
        """True if another member can go on with it: it has tokens, and the server has told its seed."""
        return self._members.seed_known and self.fingerprint is not None

    def go_on(self, served: Served, name: str | None) -> None:
        """Run on another member from now on. name: of the model there."""
        self._members.go_on(served.model, name)

    async def take(self, deadline: float) -> list[TokenOutput] | None:
        """The next outputs, those that arrive together; None at the end.

        deadline: in the event loop's time. Raises `MemberLostError`, `TimeoutError`, `ApiError`.
        """
        step = self._step = self._step or asyncio.create_task(self._next())
        waited: set[asyncio.Future[Any]] = {step, self._members.lost}
        async with asyncio.timeout_at(deadline):
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not step.done() and self._members.passed > self._taken:  # outputs from before the loss, on their way
                await asyncio.wait({step})
        if not step.done():
            raise MemberLostError(self._members.outcome)
        self._step = None
        outputs = step.result()
        self._taken += len(outputs or ())
        return outputs

    async def _next(self) -> list[TokenOutput] | None:
        return await anext(self._steps, None)

    def leave(self) -> None:
        """Take the stream from a member that is late."""
        self._members.leave()

    async def close(self) -> None:
        """End the stream."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        await self._steps.aclose()


class _Members:
    """The `TokenModel` of one stream: each submission runs on the next member, once there is one."""

    def __init__(self, model: TokenModel, name: str | None, caller: Caller) -> None:
        self.client = self if caller.client is None else caller.client
        self._caller = caller
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done while the stream waits for a member."""
        self.outcome: Outcome = TIMEOUT
        """How the last member failed."""
        self.passed = 0
        """Outputs, those that only tell of a failure left out."""
        self.seed_known = False
        self._next: tuple[TokenModel, str | None] | None = (model, name)
        self._waiting: tuple[GenerateRequest, DeferredHandle] | None = None
        self._sink: Sink | None = None
        self._attempt: object = None
        """Id of the present submission; outputs of older ones are dropped."""
        self._handle: StreamHandle | None = None

    def go_on(self, model: TokenModel, name: str | None) -> None:
        """Here is the next member."""
        self._next = (model, name)
        if self._waiting is not None:
            (request, handle), self._waiting = self._waiting, None
            self.lost = asyncio.get_running_loop().create_future()
            handle.start(partial(self._submit, request))

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel.submit`."""
        assert isinstance(request, GenerateRequest)
        self._sink = sink
        if self._next is not None:
            return self._submit(request)
        handle = DeferredHandle(request.stream_id, sink)
        self._waiting = request, handle
        if not self.lost.done():  # or it has waited for so long that it was repeated
            self.lost.set_result(None)
        return handle

    def _submit(self, request: GenerateRequest) -> StreamHandle:
        assert self._next is not None
        (model, name), self._next = self._next, None
        self._attempt = request.stream_id
        self._handle = model.submit(replace(request, model=name, deadline=self._seconds_left), self)
        return self._handle

    @property
    def _seconds_left(self) -> float | None:
        """What a member may take of the caller's time; also when that is over, for a request has to have some."""
        left = self._caller.seconds_left
        return None if left is None else max(left, SHORTEST)

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel.info`."""
        raise NotImplementedError  # a `Generation` knows what is served

    def note(self, error: LmtoolError) -> None:
        """The stream is to be repeated for this reason."""
        if isinstance(error, TimeLimitError):
            self.outcome = TIMEOUT

    def leave(self) -> None:
        """End the present submission as if its connection were lost."""
        if self._handle is not None and self._attempt is not None and self._sink is not None:
            self._handle.cancel()
            attempt, self._attempt = self._attempt, None
            self.outcome = TIMEOUT
            self._sink([failure(attempt, ConnectError("the member is late"))])

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take the member's outputs of one step, see `Sink`."""
        own = [self._seen(output) for output in outputs if output.stream_id == self._attempt]
        if own and self._sink is not None:
            self._sink(own)

    def _seen(self, output: TokenOutput) -> TokenOutput:
        """The output, with the failure of a member as the loss of a connection: elsewhere the stream may go on."""
        if output.error is None:
            self.passed += 1
            self.seed_known = self.seed_known or output.seed is not None
            return output
        self.outcome = outcome_of_error(error_of(output))
        if self.outcome.about_request:
            return output
        return replace(output, error_code="connection", retryable=None, retry_after=0)
