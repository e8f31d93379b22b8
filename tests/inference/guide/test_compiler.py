"""Compiling: thread pool, single flight, cache, deadline."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from lmtool.core import constraint
from lmtool.core.errors import (
    ConstraintError,
    ConstraintTooComplexError,
    OverloadedError,
    ResourceError,
    ServerError,
)
from lmtool.core.types import Constraint
from lmtool.inference.guide.compiler import Cache, Deadlines, MatcherCompiler
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend, GuideConfig
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, compiled, mask_of

YES_NO = constraint.choice(["yes", "no"])


class Gated(ConstraintBackend):
    """A backend that compiles once the test opens the gate."""

    gate = threading.Event()
    entered = threading.Event()

    def compile(self, wanted: Constraint):
        self.entered.set()
        assert self.gate.wait(20)
        return super().compile(wanted)


@pytest.fixture
def gated():
    Gated.gate, Gated.entered = threading.Event(), threading.Event()
    yield Gated
    Gated.gate.set()


def test_second_request_is_a_hit(compiler):
    """What was compiled is kept, and each request gets a guide of its own at the start."""
    first = compiled(compiler, YES_NO)
    start = mask_of(compiler, first)
    first.advance(int(start.nonzero()[0][0]))
    second = compiled(compiler, YES_NO)
    assert (mask_of(compiler, second) == start).all()
    assert (mask_of(compiler, first) != start).any()
    counts = compiler.counts
    assert (counts.compiles, counts.hits, counts.failures, counts.cached, counts.waiting) == (1, 1, 0, 1, 0)
    assert counts.seconds > 0
    assert counts.cached_bytes > 0


def test_failures_are_remembered(compiler):
    """A constraint that failed fails again from memory, with an error of its own."""
    problems = [compiler.compile(constraint.regex("(")).exception(10) for _ in range(2)]
    assert all(isinstance(problem, ConstraintError) for problem in problems)
    assert problems[0] is not problems[1]
    assert "unclosed group" in str(problems[0])
    assert (compiler.counts.compiles, compiler.counts.hits, compiler.counts.failures) == (1, 1, 2)


def test_one_flight_for_equal_constraints(gated):
    """Equal constraints that wait are compiled once; whoever cancels gets nothing and disturbs nobody."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, backend=gated)
    waiting = [compiler.compile(YES_NO) for _ in range(4)]
    assert waiting[1].cancel()
    gated.gate.set()
    guides = [future.result(10) for future in (waiting[0], waiting[2], waiting[3])]
    assert len(set(map(id, guides))) == 3
    with pytest.raises(CancelledError):
        waiting[1].result()
    assert compiler.counts.compiles == 1
    compiler.close()


def test_deadline(gated):
    """A request gets its answer at the deadline; the next one at once, until the constraint is compiled after all."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(deadline=0.05), gated)
    assert isinstance(compiler.compile(YES_NO).exception(10), ConstraintTooComplexError)
    assert isinstance(compiler.compile(YES_NO).exception(0), ConstraintTooComplexError)
    gated.gate.set()
    compiler._pool.shutdown(wait=True)
    assert compiler.compile(YES_NO).result(0) is not None
    compiler.close()


def test_a_full_queue_refuses(gated):
    """More different constraints than may wait are refused as overload, equal ones are not."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(threads=1, max_waiting=2, deadline=30), gated)
    first = [compiler.compile(constraint.regex(pattern)) for pattern in ("a", "b")]
    assert isinstance(compiler.compile(constraint.regex("c")).exception(0), OverloadedError)
    same = compiler.compile(constraint.regex("b"))
    gated.gate.set()
    assert all(future.result(10) for future in (*first, same))
    assert compiler.compile(constraint.regex("c")).result(10)
    compiler.close()


def test_waiting_for_a_thread_is_overload(gated):
    """Whose constraint never got a thread within the deadline is told to try again, and it is not held against it."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(threads=1, deadline=0.2), gated)
    compiler.compile(constraint.regex("a"))
    assert gated.entered.wait(10)
    assert isinstance(compiler.compile(constraint.regex("b")).exception(10), OverloadedError)
    gated.gate.set()
    assert compiler.compile(constraint.regex("b")).result(10)
    compiler.close()


def test_close_fails_what_waits(gated):
    """After close everything fails at once; guides already made go on."""
    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS, backend=gated)
    waiting = compiler.compile(YES_NO)
    compiler.close()
    gated.gate.set()
    assert isinstance(waiting.exception(10), ServerError)
    assert isinstance(compiler.compile(YES_NO).exception(0), ServerError)


def test_unusable_tokenizer():
    """A tokenizer that the library cannot read fails the requests, with a next step, and nothing else."""
    compiler = MatcherCompiler("gpt2", VOCAB, EOS)
    problem = compiler.compile(YES_NO).exception(10)
    assert isinstance(problem, ResourceError)
    assert problem.hints
    compiler.close()


@pytest.mark.parametrize("raised", [MemoryError(), RecursionError(), ValueError("odd"), BaseException("panic")])
def test_whatever_the_library_raises(monkeypatch, raised):
    """No failure inside the library, panics included, gets further than its own request."""

    def fail(self, wanted):
        raise raised

    compiler = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    with monkeypatch.context() as patched:
        patched.setattr(ConstraintBackend, "compile", fail)
        assert isinstance(compiler.compile(YES_NO).exception(10), ConstraintError)
    assert compiler.compile(constraint.regex("a")).result(10)
    compiler.close()


def test_a_model_that_cannot_end_a_text() -> None:
    """Is told apart from a constraint that is bad: nothing could say that the text is whole."""
    made = MatcherCompiler(TOKENIZER, VOCAB, ())
    assert "no end-of-text id" in str(made.compile(constraint.regex("a")).exception(30))
    made.close()


def test_opening_is_not_held_against_a_constraint() -> None:
    """A constraint waits for its tokenizer longer than it may take itself; the library is closed with its compiler."""
    events: list[str] = []
    gate = threading.Event()

    class Late(ConstraintBackend):
        def __init__(self, *given):
            assert gate.wait(20)
            super().__init__(*given)

        def close(self) -> None:
            super().close()
            events.append("close")

    made = MatcherCompiler(TOKENIZER, VOCAB, EOS, GuideConfig(threads=1, deadline=0.2), Late)
    waiting = made.compile(YES_NO)
    with pytest.raises(TimeoutError):
        waiting.result(0.5)
    gate.set()
    assert waiting.result(10).may_end() is False
    made.close()
    assert events == ["close"]


def test_closed_before_the_library_is_open() -> None:
    """A compiler closed while its library opens closes it as soon as that is done."""
    opening, closed = threading.Event(), threading.Event()

    class Slow(ConstraintBackend):
        def __init__(self, *given):
            assert opening.wait(20)
            super().__init__(*given)

        def close(self) -> None:
            closed.set()

    made = MatcherCompiler(TOKENIZER, VOCAB, EOS, backend=Slow)
    made.close()
    assert not closed.is_set()
    opening.set()
    assert closed.wait(20)


class TestCache:
    """Outcomes within a number of bytes, errors for a time."""

    @staticmethod
    def compiled(size):
        return CompiledConstraint(None, (), size, frozenset())

    def test_the_least_recently_used_goes_first(self):
        """Values stay within the bytes; one that is replaced counts once."""
        cache = Cache(100, 60)
        keys = [constraint.regex(name) for name in "abcd"]
        values = [self.compiled(30) for _ in keys]
        for key, value in zip(keys[:3], values, strict=False):
            cache.put(key, value, 0)
        assert cache.get(keys[0], 0) is values[0]
        cache.put(keys[3], values[3], 0)
        assert [cache.get(key, 10**6) for key in keys] == [values[0], None, values[2], values[3]]
        assert (len(cache), cache.bytes) == (3, 90)
        cache.put(keys[0], self.compiled(10), 0)
        assert (len(cache), cache.bytes) == (3, 70)

    def test_too_large_is_not_cached(self):
        """A value larger than the cache leaves the others alone."""
        cache = Cache(100, 60)
        cache.put(constraint.regex("a"), self.compiled(100), 0)
        cache.put(constraint.regex("b"), self.compiled(101), 0)
        assert cache.get(constraint.regex("b"), 0) is None
        assert cache.get(constraint.regex("a"), 0) is not None

    def test_errors_expire(self):
        """An error is answered for its time, and a later success takes its place; errors count by their texts."""
        cache, problem, key = Cache(10**4, 60), ConstraintError("no"), constraint.regex("a")
        cache.put(key, problem, 10)
        assert cache.get(key, 69.9) is problem
        assert cache.get(key, 70) is None
        assert (len(cache), cache.bytes) == (0, 0)
        cache.put(key, problem, 80)
        cache.put(key, self.compiled(1), 80)
        assert not isinstance(cache.get(key, 81), ConstraintError)
        for number in range(20):
            cache.put(constraint.regex(f"{number:0500}"), problem, 100)
        assert cache.bytes <= 10**4
        assert cache.get(constraint.regex(f"{0:0500}"), 101) is None
        assert cache.get(constraint.regex(f"{19:0500}"), 101) is problem


class TestDeadlines:
    """Callbacks when a time is over."""

    def test_in_order(self):
        """Each after its time, in the order of their adding."""
        deadlines, called, done = Deadlines(0.02), [], threading.Event()
        deadlines.add(lambda: called.append(1))
        deadlines.add(lambda: (called.append(2), done.set()))
        assert called == []
        assert done.wait(10)
        assert called == [1, 2]
        deadlines.close()

    def test_none_after_close(self):
        """And the thread ends."""
        deadlines, called = Deadlines(0.2), []
        deadlines.add(lambda: called.append(1))
        deadlines.close()
        deadlines._thread.join(10)
        assert not deadlines._thread.is_alive()
        assert called == []
