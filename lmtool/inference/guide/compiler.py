"""Compiles constraints in a thread pool: equal requests share one compilation, results are cached, with a deadline."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from lmtool.core.errors import ConstraintError, LmtoolError, OverloadedError, ServerError
from lmtool.inference.guide.llguidance import (
    CompiledConstraint,
    ConstraintBackend,
    GuideConfig,
    Masks,
    MatcherGuide,
    too_complex,
)
from lmtool.inference.guide.thought_guide import ThoughtGuide, ThoughtTokens
from lmtool.net.subprocesses.resources import lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lmtool.core.interfaces import Guide
    from lmtool.core.reasoning import ThoughtMarks
    from lmtool.core.types import Constraint

P = ParamSpec("P")
T = TypeVar("T")

STACK_BYTES = 512 * 1024 * 1024
"""Address space, not memory: untouched pages use none. A chain of 10,000 rules, the longest allowed, uses 100 MB."""
_FAILURE_BYTES = 1024
_STACK_SIZE_LOCK = threading.Lock()


@dataclass(slots=True)
class Counts:
    """Counters of a compiler, for metrics."""

    compiles: int = 0
    """Constraints passed to the library, successful or not."""
    hits: int = 0
    """Requests answered from the cache, including cached failures."""
    failures: int = 0
    """Requests answered with an error."""
    seconds: float = 0.0
    """Time spent compiling."""
    waiting: int = 0
    """Constraints that are being compiled or wait for a thread."""
    cached: int = 0
    """Results in the cache, including failures."""
    cached_bytes: int = 0
    """Their estimated size."""


class Cache:
    """LRU cache of compilation results, bounded in bytes; errors expire. Not thread safe."""

    def __init__(self, max_bytes: int, failure_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._failure_seconds = failure_seconds
        self._entries: OrderedDict[Constraint, tuple[CompiledConstraint | LmtoolError, int, float]] = OrderedDict()
        """Result, its bytes, and for an error the time at which it expires."""
        self.bytes = 0
        """Size of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, constraint: Constraint, now: float) -> CompiledConstraint | LmtoolError | None:
        """Return the cached result of a constraint, or None. now: seconds of any monotonic clock."""
        if constraint not in self._entries:
            return None
        outcome, _, until = self._entries[constraint]
        if isinstance(outcome, LmtoolError) and now >= until:
            self._drop(constraint)
            return None
        self._entries.move_to_end(constraint)
        return outcome

    def put(self, constraint: Constraint, outcome: CompiledConstraint | LmtoolError, now: float) -> None:
        """Add or replace a result, unless it is larger than the whole cache."""
        self._drop(constraint)
        size = _FAILURE_BYTES + len(constraint.text) if isinstance(outcome, LmtoolError) else outcome.size
        if size > self._max_bytes:
            return
        self._entries[constraint] = outcome, size, now + self._failure_seconds
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, constraint: Constraint) -> None:
        _, size, _ = self._entries.pop(constraint, (None, 0, 0.0))
        self.bytes -= size


class Deadlines:
    """Runs each callback `seconds` after its `add`, in one thread. Callbacks must be short; none runs after `close`.

    A callback cannot be cancelled: let it find nothing to do.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._queue: SimpleQueue[tuple[float, Callable[[], object]]] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lmtool-guide-deadlines", daemon=True)
        self._thread.start()

    def add(self, callback: Callable[[], object]) -> None:
        """Schedule a callback."""
        self._queue.put((time.monotonic() + self._seconds, callback))

    def close(self) -> None:
        """Drop all callbacks and stop the thread."""
        self._closed.set()
        self._queue.put((0.0, int))

    def _run(self) -> None:
        while True:
            due, callback = self._queue.get()
            if self._closed.wait(max(0.0, due - time.monotonic())):
                return
            callback()


@dataclass(eq=False, slots=True)
class _Flight:
    """One constraint that is being compiled or waits for a thread, with all requests for it."""

    waiting: list[Future[Guide]] = field(default_factory=list)
    started: bool = False


class MatcherCompiler:
    """An `interfaces.GuideCompiler` for one model. Safe from any thread; no input can end the process."""

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_ids: Sequence[int],
        config: GuideConfig | None = None,
        backend: type[ConstraintBackend] = ConstraintBackend,
    ) -> None:
        """Start reading the tokenizer in the pool (1 to 13 s for 128,000 tokens); constraints wait for it.

        tokenizer_json: the text of a tokenizer.json. vocab_size: width of the logits. eos_ids: all ids that end a text.
        """
        self._config = config or GuideConfig()
        self._eos = frozenset(eos_ids)
        self._pool = ThreadPoolExecutor(self._config.threads, "lmtool-guide", initializer=lower_priority)
        self._backend = _submit(self._pool, backend, tokenizer_json, vocab_size, tuple(eos_ids), self._config)
        self._masks = Masks(vocab_size, eos_ids, self._config)
        self._deadlines = Deadlines(self._config.deadline)
        self._lock = threading.Lock()
        self._cache = Cache(self._config.cache_bytes, self._config.failure_seconds)
        self._flights: dict[Constraint, _Flight] = {}
        self._counts = Counts()
        self._closed = False
        self._thoughts: dict[ThoughtMarks, Future[ThoughtTokens]] = {}
        """Token tables by thought marks, with the budget left out of the key."""

    @property
    def counts(self) -> Counts:
        """Counters so far, and the current number of cached and waiting constraints."""
        with self._lock:
            cached, size = len(self._cache), self._cache.bytes
            return replace(self._counts, waiting=len(self._flights), cached=cached, cached_bytes=size)

    def compile(self, constraint: Constraint | None, marks: ThoughtMarks | None = None) -> Future[Guide]:
        """Start compiling; see `interfaces.GuideCompiler.compile`. A cached result is set before this returns."""
        if marks is None:
            assert constraint is not None, "a request without thought marks has a constraint"
            return self._compile(constraint)
        answer: Future[Guide] = Future()
        inner = None if constraint is None else self._compile(constraint)
        tokens = self._thought_tokens(marks)
        settle = partial(_settle_thought, answer, marks, tokens, inner)
        (inner or tokens).add_done_callback(lambda _: tokens.add_done_callback(settle))
        return answer

    def _thought_tokens(self, thought: ThoughtMarks) -> Future[ThoughtTokens]:
        """Token tables for thought marks, computed once per kind of mark."""
        kind = replace(thought, budget=None, ending=(), empty=())
        with self._lock:
            known = self._thoughts.get(kind)
        if known is not None:
            return known
        try:
            work = _submit(self._pool, lambda: ThoughtTokens(kind, self._backend.result().tokenizer, self._eos))
        except RuntimeError:  # `close` was called meanwhile
            work = Future()
            work.set_exception(_closed())
            return work
        with self._lock:
            return self._thoughts.setdefault(kind, work)

    def _compile(self, constraint: Constraint) -> Future[Guide]:
        answer: Future[Guide] = Future()
        new_flight = None
        with self._lock:
            outcome = self._cache.get(constraint, time.monotonic())
            if outcome is not None:
                self._counts.hits += 1
            elif (outcome := self._refusal(constraint)) is None:
                new_flight = self._join(constraint, answer)
        if outcome is not None:
            self._settle([answer], outcome)
        elif new_flight is not None:
            try:
                work = _submit(self._pool, self._work, constraint, new_flight)
            except RuntimeError:  # `close` was called meanwhile and has answered the waiting requests
                return answer
            work.add_done_callback(partial(self._land, constraint, new_flight))
        return answer

    def fill(self, rows: Sequence[tuple[Guide, int]], mask: NDArray[np.int32]) -> None:
        """Fill masks, see `interfaces.GuideCompiler.fill`."""
        self._masks.fill([(own, row) for guide, row in rows if (own := _followed(guide)) is not None], mask)
        for guide, row in rows:
            if isinstance(guide, ThoughtGuide):
                guide.finish_mask(mask[row].view(np.uint32))

    def fill_drafts(self, rows: Sequence[tuple[Guide, int, Sequence[int]]], mask: NDArray[np.int32]) -> None:
        """Fill masks for drafts, see `interfaces.GuideCompiler.fill_drafts`."""
        for _, row, draft in rows:
            mask[row : row + len(draft) + 1] = -1
        self.fill([(guide, row) for guide, row, _ in rows], mask)
        for guide, row, draft in rows:
            legal = draft[: guide.accepts(draft)]
            ahead = guide.fork() if legal else guide
            for at, token in enumerate(legal, start=row + 1):
                ahead.advance(token)
                self.fill([(ahead, at)], mask)

    def close(self) -> None:
        """Stop compiling; waiting requests fail."""
        with self._lock:
            self._closed = True
            waiting = [answer for flight in self._flights.values() for answer in flight.waiting]
            for flight in self._flights.values():
                flight.waiting.clear()
            self._flights.clear()
        self._deadlines.close()
        self._backend.add_done_callback(_close)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._settle(waiting, _closed())

    def _refusal(self, constraint: Constraint) -> LmtoolError | None:
        if self._closed:
            return _closed()
        if not self._eos:
            return ConstraintError("this model has no end-of-text id, so no constraint can be enforced")
        if constraint not in self._flights and len(self._flights) >= self._config.max_waiting:
            return OverloadedError(f"{len(self._flights)} constraints already wait to be compiled", "try again later")
        return None

    def _join(self, constraint: Constraint, answer: Future[Guide]) -> _Flight | None:
        """Add a request to the flight of its constraint; return the flight if it is new and must be started."""
        known = self._flights.get(constraint)
        flight = known or self._flights.setdefault(constraint, _Flight())
        flight.waiting.append(answer)
        give_up = partial(self._give_up, constraint, flight, answer)
        # The tokenizer of a model just loaded may take longer to read than a constraint may take.
        self._backend.add_done_callback(lambda _: self._deadlines.add(give_up))
        return flight if known is None else None

    def _work(self, constraint: Constraint, flight: _Flight) -> CompiledConstraint:
        backend = self._backend.result()
        flight.started = True
        started = time.perf_counter()
        try:
            return backend.compile(constraint)
        finally:
            with self._lock:
                self._counts.compiles += 1
                self._counts.seconds += time.perf_counter() - started

    def _land(self, constraint: Constraint, flight: _Flight, work: Future[CompiledConstraint]) -> None:
        """Cache a result and answer its requests; a panic of the library, not an `Exception`, is a result too."""
        if work.cancelled():
            return
        error = work.exception()
        outcome: CompiledConstraint | LmtoolError = work.result() if error is None else _as_lmtool_error(error)
        with self._lock:
            if self._flights.get(constraint) is flight:
                del self._flights[constraint]
            waiting, flight.waiting = flight.waiting, []
            self._cache.put(constraint, outcome, time.monotonic())
        self._settle(waiting, outcome)

    def _give_up(self, constraint: Constraint, flight: _Flight, answer: Future[Guide]) -> None:
        """Fail one request at its deadline."""
        with self._lock:
            if answer not in flight.waiting:
                return
            flight.waiting.remove(answer)
            limit = f"{self._config.deadline:g} s"
            error: LmtoolError = OverloadedError(f"the constraint waited {limit} for a free thread", "try again later")
            if flight.started:
                error = too_complex(f"compiling the constraint takes more than {limit}")
                self._cache.put(constraint, error, time.monotonic())
        self._settle([answer], error)

    def _settle(self, waiting: list[Future[Guide]], outcome: CompiledConstraint | LmtoolError) -> None:
        for answer in waiting:
            if not answer.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, LmtoolError):
                with self._lock:
                    self._counts.failures += 1
                answer.set_exception(type(outcome)(outcome.message, *outcome.hints))
            else:
                answer.set_result(outcome.guide())


def _submit(pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Submit to a pool whose threads get a large stack: the library recurses through the rules of a grammar.

    A chain of 2500 rules or references overflows the default 8 MB and kills the process.
    """
    with _STACK_SIZE_LOCK:
        usual = threading.stack_size(STACK_BYTES)
        try:
            return pool.submit(function, *args, **kwargs)
        finally:
            threading.stack_size(usual)


def _as_lmtool_error(error: BaseException) -> LmtoolError:
    if isinstance(error, LmtoolError):
        return error
    if isinstance(error, MemoryError | RecursionError):
        return too_complex("the constraint does not fit into memory")
    return ConstraintError(f"the constraint cannot be compiled: {type(error).__name__}: {error}"[:400])


def _closed() -> LmtoolError:
    return ServerError("the server stopped before the constraint was compiled", "connect again later")


def _close(backend: Future[ConstraintBackend]) -> None:
    if not backend.cancelled() and backend.exception() is None:
        backend.result().close()


def _followed(guide: Guide) -> MatcherGuide | None:
    """Guide whose mask must be filled for this guide, or None."""
    if isinstance(guide, ThoughtGuide):
        return guide.followed()
    assert isinstance(guide, MatcherGuide)
    return guide


def _settle_thought(
    answer: Future[Guide],
    thought: ThoughtMarks,
    tokens: Future[ThoughtTokens],
    inner: Future[Guide] | None,
    _done: Future[ThoughtTokens],
) -> None:
    """Answer with a `ThoughtGuide` once the token tables and the constraint are ready."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        constraint = None if inner is None else inner.result()
        assert constraint is None or isinstance(constraint, MatcherGuide)
        answer.set_result(ThoughtGuide(thought, tokens.result(), constraint))
    except CancelledError:
        answer.set_exception(_closed())
    except LmtoolError as error:
        answer.set_exception(error)
