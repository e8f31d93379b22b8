"""Phases, perplexity and timing of streams, for any moment."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.tui.streams import WINDOW, timing_of, timing_of_all
from tests.trace.conftest import generate, token, tokens
from tests.tui.folding import fed


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("cancelled", "cancelled"),
        ("content_filter", "stop"),
        ("error", "error"),
    ],
)
def test_phases(reason: str, phase: str) -> None:
    """Waiting until the first token, running until the end; then how it ended."""
    state = fed(generate(0.1), tokens(0.5, token(1)), tokens(1.0, token(2) | {"finish_reason": reason}))
    stream = state.streams[0]
    told = [stream.phase(moment, state.tokens_at(moment)) for moment in (0.2, 0.5, 0.9, 1.0, 5.0)]
    assert told == ["waiting", "running", "running", phase, phase]


def test_only_the_first_ending_counts() -> None:
    """What comes after the first ending is not believed."""
    stream = fed(generate(0.1)).streams[0]
    stream.end(1.0, "stop", None)
    stream.end(2.0, None, "late")
    assert (stream.ended, stream.finish_reason, stream.error) == (1.0, "stop", None)


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=10), st.lists(st.integers(1, 10), max_size=4))
def test_perplexity(logprobs: list[float], asked: list[int]) -> None:
    """The exponential of the mean surprisal of the first tokens, asked in any order."""
    state = fed(generate(0.0), *[tokens(0.1, token(1, logprob=p)) for p in logprobs])
    for count in [*asked, len(logprobs)]:
        if count <= len(logprobs):
            expected = math.exp(-math.fsum(logprobs[:count]) / count)
            assert state.streams[0].perplexity(count) == pytest.approx(expected, rel=1e-5)


def test_perplexity_without_logprobs() -> None:
    """Tokens without a logprob are left out; without any that has one it is not known."""
    state = fed(generate(0.0), tokens(0.1, token(1, logprob=-1.0), token(2) | {"logprob": None}, token(3)))
    stream = state.streams[0]
    assert [stream.perplexity(count) for count in range(4)] == [
        None,
        *[pytest.approx(math.e)] * 2,
        pytest.approx(math.exp(0.75)),
    ]


def test_perplexity_beyond_all_floats() -> None:
    """A surprisal that no float can be raised to is infinite."""
    assert fed(generate(0.0), tokens(0.1, token(1, logprob=-1e9))).streams[0].perplexity(1) == math.inf


def test_timing_is_told_by_frame() -> None:
    """Tokens of one frame arrived together: gaps are those between frames, and the rate leaves out the first frame."""
    state = fed(
        generate(1.0),
        tokens(1.5, token(1), token(2)),
        tokens(1.6, token(3)),
        tokens(1.8, token(4), token(5), token(6, 9)),
    )
    timing = timing_of(state.streams[0], 5, state.tokens, state.frames)
    assert timing.ttft == pytest.approx(0.5)
    assert timing.gaps == pytest.approx((0.1, 0.2))
    assert timing.per_frame == pytest.approx(5 / 3)
    assert timing.rate == pytest.approx(3 / 0.3)
    assert timing.gap(0.5) == pytest.approx(0.1)
    assert timing.gap(0.99) == pytest.approx(0.2)


def test_timing_of_a_moment() -> None:
    """Only tokens seen so far count."""
    state = fed(generate(0.0), *[tokens(0.1 * i, token(1)) for i in range(1, 6)])
    stream = state.streams[0]
    assert timing_of(stream, 0, state.tokens, state.frames).ttft is None
    assert timing_of(stream, 1, state.tokens, state.frames).gaps == ()
    assert len(timing_of(stream, 3, state.tokens, state.frames).gaps) == 2
    assert len(timing_of_all(4, state.tokens, state.frames).gaps) == 3
    assert timing_of_all(0, state.tokens, state.frames).rate is None


def test_stalls_stand_out() -> None:
    """A gap over four times the median and over 50 ms is a stall."""
    moments = [0.01 * i for i in range(1, 20)]
    state = fed(generate(0.0), *[tokens(m if m < 0.1 else m + 0.3, token(1)) for m in moments])
    timing = timing_of(state.streams[0], 19, state.tokens, state.frames)
    assert timing.stalls == (8,)
    quick = fed(generate(0.0), *[tokens(m / 10 if m < 0.1 else m / 10 + 0.02, token(1)) for m in moments])
    assert timing_of(quick.streams[0], 19, quick.tokens, quick.frames).stalls == ()


def test_old_arrivals_are_left_out() -> None:
    """Gaps are those of the last arrivals, so that looking at a long stream stays quick."""
    state = fed(generate(0.0), *[tokens(i / 100, token(1)) for i in range(WINDOW + 50)])
    assert len(timing_of(state.streams[0], WINDOW + 50, state.tokens, state.frames).gaps) == WINDOW - 1
    assert len(timing_of_all(WINDOW + 50, state.tokens, state.frames).gaps) == WINDOW - 1
