"""Which worker takes a stream, which one goes on with it after a loss, and the streams that wait for one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.errors import (
    ConnectError,
    LmtoolError,
    OutOfMemoryError,
    OverloadedError,
    ServerError,
    TimeLimitError,
    UnknownModelError,
    unnamed_model,
)
from lmtool.core.model_entry import find, merged
from lmtool.core.streams import DeferredHandle, refuse
from lmtool.core.types import GenerateRequest
from lmtool.gateway.routing.prefixes import PrefixTable
from lmtool.gateway.routing.strategies import Candidate, LeastLoaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.types import ModelInfo, ScoreRequest
    from lmtool.gateway.balance.worker import Description, Worker

    Request = GenerateRequest | ScoreRequest

WAIT_SECONDS = 60.0
"""How long a stream waits for a worker that can take it."""
MAX_WAITING = 1024
"""Most streams that wait for their first worker; those that have begun wait however many they are."""
MAX_FAILURES = 7
"""Attempts of a stream that has brought nothing: it may be what its workers die of."""
_TICK = 0.1
"""Seconds between two looks at what waits: rests end unannounced."""


class Route(NamedTuple):
    """The workers that serve a model."""

    model: str | None
    """Its name; what was asked for where no worker lists that, such as what one would load on demand."""
    workers: Sequence[Worker]
    """Those that list it, up or not; all of them where none does."""


class Attempt(DeferredHandle):
    """One attempt at a stream, on a worker or waiting for one; the handle on it."""

    __slots__ = (
        "_began",
        "description",
        "expires",
        "failures",
        "given_up",
        "has_output",
        "model",
        "request",
        "sink",
        "tried",
        "unserved",
        "worker",
    )

    def __init__(self, request: Request, sink: Sink, expires: float) -> None:
        """expires: when it is given up if it still waits, in the loop's time."""
        super().__init__(request.stream_id, sink)
        self._began: float | None = None
        self.request = request
        self.sink = sink
        self.model = request.model
        """The name of its model, once a worker for that was found."""
        self.expires = expires
        self.has_output = False
        """True if an earlier attempt has brought anything: only what computes the same bits may go on."""
        self.tried: set[int] = set()
        """Numbers of the workers that failed it since it last brought a token."""
        self.failures = 0
        """How many attempts in a row have failed without a token."""
        self.unserved = False
        """True if the last of them does not serve the model."""
        self.worker: Worker | None = None
        """That it is on, or was on last."""
        self.description: Description | None = None
        """Of the model there."""
        self.given_up = False
        """True if it ended because there is no worker for it."""

    def start(self, submit: Callable[[], StreamHandle]) -> None:
        """See `DeferredHandle.start`."""
        self._began = time.perf_counter()
        super().start(submit)

    def began_at(self) -> float | None:
        """When it was given to a worker, whose own queue is another matter."""
        return self._began

    @property
    def fingerprint(self) -> str | None:
        """That of the worker that it is on, or was on last."""
        return None if self.description is None else self.description.fingerprint

    def follow(self, last: Attempt) -> None:
        """Take over from the attempt before."""
        self.model, self.worker, self.description = last.model, last.worker, last.description
        self.unserved = last.unserved
        if len(_generated(self.request)) == len(_generated(last.request)):
            self.tried, self.failures = last.tried, last.failures


class StreamRouter:
    """A `TokenModel` and `resuming.Rerouting` over workers that a balancer keeps. Belongs to one event loop."""

    def __init__(
        self, workers: Sequence[Worker], expected: Sequence[ModelEntry] = (), wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """expected: the list of models until a worker has sent its own."""
        self._workers = workers
        self._expected = expected
        self.wait_seconds = wait_seconds
        self._prefixes = PrefixTable()
        self._strategy = LeastLoaded()
        self._lists: list[Sequence[ModelEntry]] = []
        self._models: list[ModelEntry] = []
        self._waiting: list[Attempt] = []
        self.resumed = 0
        """How often a stream was submitted again."""
        self._timer: asyncio.Handle | None = None
        self._closed = False

    # What is served where.

    @property
    def models(self) -> list[ModelEntry]:
        """What all workers list, each model once."""
        lists = [worker.models for worker in self._workers]
        if len(lists) != len(self._lists) or any(
            one is not other for one, other in zip(lists, self._lists, strict=True)
        ):
            self._lists, self._models = lists, merged(lists)
        return self._models or list(self._expected)

    def route(self, name: str | None) -> Route:
        """The workers of the model of a name or alias. Raises `UnknownModelError` for None among several."""
        models = self.models
        entry = find(models, name)
        if entry is None and name is None and models:
            raise unnamed_model(len(models), self._served_here())
        model = name if entry is None else entry.name
        return Route(model, [worker for worker in self._workers if worker.entry(model) is not None] or self._workers)

    def unknown(self, name: str | None) -> UnknownModelError:
        """The error of a name that no worker serves."""
        problem = f"model {name!r:.200} is not served here" if name is not None else "the request names no model"
        return UnknownModelError(problem, self._served_here())

    def _served_here(self) -> str:
        names = ", ".join(entry.name for entry in self.models)
        return f"served here: {names}" if names else "nothing is in memory yet"

    @property
    def waiting(self) -> int:
        """Streams that wait for a worker."""
        return sum(not attempt.ended for attempt in self._waiting)

    # Streams.

    def submit(self, request: Request, sink: Sink) -> StreamHandle:
        """Start a stream on one of the workers; see `TokenModel.submit`."""
        attempt = Attempt(request, sink, self._now() + self.wait_seconds)
        if not self._place(attempt):
            if self.waiting >= MAX_WAITING:
                return refuse(request.stream_id, sink, OverloadedError("no worker is up, and too many streams wait"))
            self._wait(attempt)
        return attempt

    def may_go_on(self, handle: StreamHandle, error: LmtoolError, *, has_output: bool) -> bool:
        """See `resuming.Rerouting`: after a loss, and where another worker can do at once what one could not."""
        assert isinstance(handle, Attempt)
        if self._closed or handle.given_up or handle.worker is None:
            return False
        handle.has_output = has_output
        handle.tried.add(handle.worker.number)
        handle.failures += 1
        if not has_output and handle.failures >= MAX_FAILURES:
            return False
        handle.unserved = not has_output and isinstance(error, UnknownModelError)
        if isinstance(error, ConnectError):
            return error.retryable
        if isinstance(error, OverloadedError):
            return has_output or self._has_other(handle)
        if handle.unserved:  # another one may load it on demand
            return self._has_other(handle) or not self._all_serve_the_same
        failed = isinstance(error, ServerError | OutOfMemoryError | TimeLimitError)
        return failed and error.retryable and self._has_other(handle)

    @property
    def _all_serve_the_same(self) -> bool:
        return len({tuple(entry.name for entry in worker.models) for worker in self._workers if worker.up}) < 2

    def go_on(self, request: Request, sink: Sink, handle: StreamHandle, *, has_output: bool) -> StreamHandle:
        """See `resuming.Rerouting`: on a worker with the same fingerprint, as soon as there is one."""
        assert isinstance(handle, Attempt)
        attempt = Attempt(request, sink, self._now() + self.wait_seconds)
        attempt.has_output = has_output
        attempt.follow(handle)
        self.resumed += 1
        if not self._place(attempt):
            self._wait(attempt)
        return attempt

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel.info`."""
        raise NotImplementedError  # the balancer describes what is served

    def wake(self) -> None:
        """See at once whether something that waits can start: a worker has changed."""
        if self._waiting and not self._closed:
            self._look_at(0.0)

    def discard(self, worker: Worker) -> None:
        """Record that a worker has lost its cache."""
        self._prefixes.discard(worker.number)

    def close(self) -> None:
        """Start nothing more; what waits ends with an error."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for attempt in self._waiting:
            attempt.fail(ConnectError("the server is shutting down", "send the request again when it is back"))
        self._waiting.clear()

    # Choosing.

    def _place(self, attempt: Attempt) -> bool:
        """Start an attempt on a worker, or end it where there is none to wait for; whether either was done."""
        try:
            route = self.route(attempt.model)
            worker = self._choose(attempt, route)
            if worker is None:
                self._check_worth(attempt, route)
        except LmtoolError as error:
            attempt.given_up = True
            attempt.fail(error)
            return True
        if worker is not None:
            self._start(attempt, worker, route.model)
        return worker is not None

    def _start(self, attempt: Attempt, worker: Worker, model: str | None) -> None:
        request = attempt.request
        attempt.model, attempt.worker, attempt.description = model, worker, worker.learn(model)
        if request.model != model and (request.model is not None or len(worker.models) > 1):
            request = replace(request, model=model)  # was an alias that this worker may not have
        self._prefixes.add(request.prompt, worker.number, model)
        attempt.start(partial(worker.submit, request, attempt.sink))

    def _choose(self, attempt: Attempt, route: Route) -> Worker | None:
        """The best worker that can take it now; one that has failed it only where no other can."""
        if not attempt.has_output:
            for worker in route.workers:
                entry = worker.entry(route.model)
                if worker.up and entry is not None and entry.phase == "ready":
                    worker.learn(route.model)  # before a stream has to be moved there
        able = self._able(attempt, route)
        fresh = [worker for worker in able if worker.number not in attempt.tried]
        if not attempt.unserved:
            fresh = fresh or able
        known = self._prefixes.matches(attempt.request.prompt, route.model)
        candidates = [Candidate(one.number, one.running, known.get(one.number, 0)) for one in fresh]
        ordered = self._strategy.order(candidates, self._now())
        return self._workers[ordered[0].member] if ordered else None

    def _able(self, attempt: Attempt, route: Route) -> list[Worker]:
        """The workers that can take it now."""
        available = [worker for worker in route.workers if worker.available]
        if not attempt.has_output:
            return available
        same = [worker for worker in available if _computes_the_same(worker, attempt, route.model)]
        for worker in () if same else available:
            worker.learn(route.model)  # which may load it there
        return same

    def _has_other(self, attempt: Attempt) -> bool:
        """True if a worker can take it now that has not failed it."""
        try:
            able = self._able(attempt, self.route(attempt.model))
        except UnknownModelError:
            return False
        return any(worker.number not in attempt.tried for worker in able)

    def _check_worth(self, attempt: Attempt, route: Route) -> None:
        """Raise why an attempt that no worker can take now does not wait for one.

        One that has begun has waited for too long. A new one does not wait either where all that are up rest, which
        says more to its client than silence, and where none was ever up.
        """
        if attempt.unserved:
            raise self.unknown(attempt.model)
        late = self._now() >= attempt.expires
        if attempt.has_output:
            if late:
                raise self._lost(attempt)
            return
        rests = [worker.rest_seconds for worker in route.workers if worker.up]
        if rests:
            why = "every worker that is up rests: it is overloaded, or has failed"
            raise OverloadedError(why, f"try again in {max(min(rests), 0.1):.1f} s")
        if late or not any(worker.ever_up for worker in route.workers):
            others = any(worker.up for worker in self._workers)
            what = f"no worker that serves {route.model} is up" if others else "no worker is up"
            raise ConnectError(what, "try again in a moment")

    def _lost(self, attempt: Attempt) -> ConnectError:
        assert attempt.worker is not None
        return ConnectError(
            f"the stream was cut on {attempt.worker.name}, and no worker with the same fingerprint could go on with it "
            f"within {self.wait_seconds:g} s",
            "send the request again",
        )

    # Waiting.

    def _wait(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        if self._timer is None:
            self._look_at(_TICK)

    def _look_at(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Start what can start, end what has waited for too long."""
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            if not attempt.ended and not self._place(attempt):
                self._waiting.append(attempt)
        if self._waiting:
            self._look_at(_TICK)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _computes_the_same(worker: Worker, attempt: Attempt, model: str | None) -> bool:
    """True if a worker is known to give the rest of a stream to the bit.

    Where neither has a fingerprint, only the worker that the stream was on, as for a client that knows one server.
    """
    theirs, own = worker.description(model).fingerprint, attempt.fingerprint
    return own == theirs and (own is not None or worker is attempt.worker)


def _generated(request: Request) -> tuple[int, ...]:
    return request.generated if isinstance(request, GenerateRequest) else ()
