"""Compiles constraints in a pool of its own: one flight for each, kept when done, within a deadline."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lmtool.errors import ConstraintError, LmtoolError, OverloadedError, ServerError
from lmtool.guide.cache import Cache
from lmtool.guide.config import GuideConfig
from lmtool.guide.deadlines import Deadlines
from lmtool.guide.guide import MatcherGuide, too_complex
from lmtool.guide.masks import Masks
from lmtool.guide.templates import Template, Templates
from lmtool.subprocesses.background import step_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lmtool.interfaces import Guide
    from lmtool.types import Constraint


P = ParamSpec("P")
T = TypeVar("T")

STACK_BYTES = 512 * 1024 * 1024
"""Addresses, not memory: what is not reached takes none. 10,000 rules in a chain, all that fit, take 100 MB."""
_STARTING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Counts:
    """What a compiler has done so far, for metrics."""

    compiles: int = 0
    """Constraints given to the library, with whatever outcome."""
    hits: int = 0
    """Requests answered from memory, failures among them."""
    failures: int = 0
    """Requests answered with an error."""
    seconds: float = 0.0
    """Time spent compiling."""
    waiting: int = 0
    """Constraints being compiled or waiting for a thread now."""
    cached: int = 0
    """Compiled constraints kept now."""
    cached_bytes: int = 0
    """Their estimated size."""


@dataclass(eq=False, slots=True)
class _Flight:
    """One constraint on its way, and who waits for it."""

    waiting: list[Future[Guide]] = field(default_factory=list)
    started: bool = False


class MatcherCompiler:
    """An `interfaces.GuideCompiler` for one model. Safe from any thread; nothing it is given can end the process."""

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_ids: Sequence[int],
        config: GuideConfig | None = None,
        library: type[Templates] = Templates,
    ) -> None:
        """Begin to read the tokenizer (1 to 13 s for 128,000 tokens) in the pool; constraints wait for it.

        tokenizer_json: the text of a tokenizer.json. vocab_size: width of the logits. eos_ids: all ids that end a text.
        """
        self._config = config or GuideConfig()
        self._eos = frozenset(eos_ids)
        self._pool = ThreadPoolExecutor(self._config.threads, "lmtool-guide", initializer=step_back)
        opened = _submit(self._pool, library, tokenizer_json, vocab_size, tuple(eos_ids), self._config)
        self._library: Future[Templates] = opened
        self._masks = Masks(vocab_size, eos_ids, self._config, lambda rows, mask: opened.result().compute(rows, mask))
        self._deadlines = Deadlines()
        self._lock = threading.Lock()
        self._cache: Cache[Constraint, Template] = Cache(self._config.cache_bytes, self._config.failure_seconds)
        self._flights: dict[Constraint, _Flight] = {}
        self._counts = Counts()
        self._closed = False

    @property
    def counts(self) -> Counts:
        """What was done so far, and what is kept and waits now."""
        with self._lock:
            cached, size = len(self._cache), self._cache.bytes
            return replace(self._counts, waiting=len(self._flights), cached=cached, cached_bytes=size)

    def compile(self, constraint: Constraint) -> Future[Guide]:
        """Begin to compile, see `interfaces.GuideCompiler.compile`. What is in memory is done when this returns."""
        answer: Future[Guide] = Future()
        with self._lock:
            known = self._cache.get(constraint, time.monotonic())
            if known is not None:
                self._count(hits=1)
            outcome = known or self._refusal(constraint)
            fresh = None if outcome is not None else self._join(constraint, answer)
        if outcome is not None:
            self._settle([answer], outcome)
        elif fresh is not None:
            self._start(constraint, fresh)
        return answer

    def fill(self, rows: Sequence[tuple[Guide, int]], mask: NDArray[np.int32]) -> None:
        """Fill masks, see `interfaces.GuideCompiler.fill`."""
        self._masks.fill([(_own(guide), row) for guide, row in rows], mask)

    def fill_drafts(self, rows: Sequence[tuple[Guide, int, Sequence[int]]], mask: NDArray[np.int32]) -> None:
        """Fill masks for drafts, see `interfaces.GuideCompiler.fill_drafts`."""
        self._masks.fill_drafts([(_own(guide), row, draft) for guide, row, draft in rows], mask)

    def close(self) -> None:
        """Stop compiling; what waits fails."""
        with self._lock:
            self._closed = True
            waiting = [answer for flight in self._flights.values() for answer in flight.waiting]
            for flight in self._flights.values():
                flight.waiting.clear()
            self._flights.clear()
        self._deadlines.close()
        self._library.add_done_callback(_close)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._settle(waiting, _closed())

    def _refusal(self, constraint: Constraint) -> LmtoolError | None:
        if self._closed:
            return _closed()
        if not self._eos:
            return ConstraintError("this model has no id that ends a text, so no text can be held to a constraint")
        if constraint not in self._flights and len(self._flights) >= self._config.max_waiting:
            return OverloadedError(f"{len(self._flights)} constraints wait to be compiled already", "try again later")
        return None

    def _join(self, constraint: Constraint, answer: Future[Guide]) -> _Flight | None:
        """Let the answer wait for its constraint; return the flight if it is a new one, to be started."""
        known = self._flights.get(constraint)
        flight = known or self._flights.setdefault(constraint, _Flight())
        flight.waiting.append(answer)
        give_up = partial(self._give_up, constraint, flight, answer)
        # The tokenizer of a model just loaded may take longer to read than a constraint may take.
        self._library.add_done_callback(lambda _: self._deadlines.add(self._config.deadline, give_up))
        return flight if known is None else None

    def _start(self, constraint: Constraint, flight: _Flight) -> None:
        try:
            work = _submit(self._pool, self._work, constraint, flight)
        except RuntimeError:  # closed meanwhile: whoever waited has been told
            return
        work.add_done_callback(partial(self._land, constraint, flight))

    def _work(self, constraint: Constraint, flight: _Flight) -> Template:
        library = self._library.result()
        flight.started = True
        started = time.perf_counter()
        try:
            return library.make(constraint)
        finally:
            with self._lock:
                self._count(compiles=1, seconds=time.perf_counter() - started)

    def _land(self, constraint: Constraint, flight: _Flight, work: Future[Template]) -> None:
        """Take what a flight brought; also a panic of the library, which is no `Exception`, arrives here."""
        if work.cancelled():
            return
        error = work.exception()
        outcome: Template | LmtoolError = work.result() if error is None else _told(error)
        with self._lock:
            if self._flights.get(constraint) is flight:
                del self._flights[constraint]
            waiting, flight.waiting = flight.waiting, []
            if isinstance(outcome, LmtoolError):
                self._cache.put_failure(constraint, outcome, time.monotonic())
            else:
                self._cache.put(constraint, outcome, outcome.size)
        self._settle(waiting, outcome)

    def _give_up(self, constraint: Constraint, flight: _Flight, answer: Future[Guide]) -> None:
        """The deadline of one request is over."""
        with self._lock:
            if answer not in flight.waiting:
                return
            flight.waiting.remove(answer)
            limit = f"{self._config.deadline:g} s"
            error: LmtoolError = OverloadedError(f"the constraint waited {limit} for a free thread", "try again later")
            if flight.started:
                error = too_complex(f"compiling the constraint takes more than {limit}")
                self._cache.put_failure(constraint, error, time.monotonic())
        self._settle([answer], error)

    def _settle(self, waiting: list[Future[Guide]], outcome: Template | LmtoolError) -> None:
        for answer in waiting:
            if not answer.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, LmtoolError):
                with self._lock:
                    self._count(failures=1)
                answer.set_exception(type(outcome)(outcome.message, *outcome.hints))
            else:
                answer.set_result(outcome.guide())

    def _count(self, *, compiles: int = 0, hits: int = 0, failures: int = 0, seconds: float = 0.0) -> None:
        now = self._counts
        self._counts = replace(
            now,
            compiles=now.compiles + compiles,
            hits=now.hits + hits,
            failures=now.failures + failures,
            seconds=now.seconds + seconds,
        )


def _submit(pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Submit to a pool whose threads have a large stack: the library recurses through a grammar's rules.

    With the system's 8 MB, a chain of 2500 rules or references ends the process.
    """
    with _STARTING:
        usual = threading.stack_size(STACK_BYTES)
        try:
            return pool.submit(function, *args, **kwargs)
        finally:
            threading.stack_size(usual)


def _told(error: BaseException) -> LmtoolError:
    if isinstance(error, LmtoolError):
        return error
    if isinstance(error, MemoryError | RecursionError):
        return too_complex("the constraint does not fit into memory")
    return ConstraintError(f"the constraint cannot be compiled: {type(error).__name__}: {error}"[:400])


def _closed() -> LmtoolError:
    return ServerError("the server stopped before the constraint was compiled", "connect again later")


def _close(library: Future[Templates]) -> None:
    if not library.cancelled() and library.exception() is None:
        library.result().close()


def _own(guide: Guide) -> MatcherGuide:
    assert isinstance(guide, MatcherGuide)
    return guide
