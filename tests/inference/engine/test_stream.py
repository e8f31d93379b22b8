"""What a stream asks of its logits, and what its outputs look like."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from lmtool.core.types import SamplingParams, Usage
from lmtool.inference.engine.plan import Sequence
from lmtool.inference.engine.sampling_result import SampledToken
from lmtool.inference.engine.stream import Stream
from tests.inference.engine.guiding import StepGuide


@pytest.fixture
def make():
    """A stream over ids 5, 6, 7 with a prompt of two."""
    loop = asyncio.new_event_loop()

    def make(*, scoring=False, top_logprobs=1, **params):
        sequence = Sequence(1, [5, 6, 7], 2, 9, scoring=scoring, stop_ids=frozenset({2}))
        return Stream("s", lambda outputs: None, loop, sequence, SamplingParams(**params), top_logprobs, seed=4)

    yield make
    loop.close()


def test_scored_rows(make):
    """The logits at a position score the id behind it."""
    assert [row.target for row in make(scoring=True).rows(range(2))] == [6, 7]


def test_generated_row(make):
    """One row for the next id, with the stream's seed and place."""
    (row,) = make(repetition_penalty=1.5).rows(range(2, 3))
    assert (row.target, row.seed, row.position, row.top_logprobs) == (None, 4, 3, 1)
    assert row.known_ids == {5, 6, 7}
    assert make().rows(range(3, 3)) == []


def test_min_tokens(make):
    """Stop ids are barred until enough was generated, here or, by `generated`, before."""
    stream = make(min_tokens=2)
    assert set(stream.rows(range(2, 3))[0].barred) == {2}
    stream.sequence.tokens.append(8)
    assert not stream.rows(range(3, 4))[0].barred


@pytest.mark.parametrize("sampling", [{}, {"min_tokens": 3}, {"repetition_penalty": 1.5}, {"frequency_penalty": 0.5}])
def test_the_next_row(make, sampling):
    """That of the last id: the same from step to step, but where more than its place changes, as barred ids do."""
    stream, seen = make(**sampling), []
    for token in range(8, 13):
        known = len(stream.sequence.tokens)
        seen.append(stream.next_row(None))
        assert [seen[-1]] == stream.rows(range(known - 1, known))
        stream.output(SampledToken(token, -1.0, None), None)
        stream.sequence.tokens.append(token)
    assert (seen[-1] is seen[-2]) == ("penalty" not in "".join(sampling))


@pytest.mark.parametrize(
    ("allowed", "sampling", "barred"),
    [
        ({2, 3, 8}, {"min_tokens": 2}, {2, 3}),
        ({3, 31, 40}, {"min_tokens": 2}, {2, 3}),
        ({2, 3}, {"min_tokens": 2}, set()),
        ({2, 3, 8}, {"ignore_eos": True}, {2}),
        ({2}, {"ignore_eos": True}, set()),
        ({2, 3, 8}, {}, set()),
    ],
)
def test_what_a_constraint_forces(make, allowed, sampling, barred):
    """Eos under `ignore_eos`, and stop ids too before `min_tokens`, are barred where the constraint allows others."""
    stream = make(stop_token_ids=(3,), **sampling)
    stream.eos, stream.sequence.stop_ids = frozenset({2}), frozenset({2, 3})
    stream.guide = StepGuide([allowed], 2)
    mask = np.zeros((1, 2), np.uint32)
    for token in allowed:
        mask[0, token // 32] |= np.uint32(1 << token % 32)
    [row] = stream.rows(range(2, 3), torch.from_numpy(mask.view(np.int32)))
    assert set(row.barred) == barred


def test_what_stopped_it(make):
    """The request's own stop id is told, an eos id is not, even where it is both."""
    stream = make(stop_token_ids=(3, 2))
    stream.eos = frozenset({2})
    endings = [(3, "stop"), (2, "stop"), (3, "length"), (3, None)]
    told = [stream.output(SampledToken(token, -1.0, None), reason).stopped_by for token, reason in endings]
    assert told == [3, None, None, None]


def test_a_stop_id_is_not_jumped_over(make):
    """What a constraint forces is taken up to a stop id, which is drawn: it ends the stream."""
    stream = make(stop_token_ids=(9,))
    stream.sequence.stop_ids = frozenset({2, 9})
    stream.guide = StepGuide([{7}, {8}, {9}, {10}], 2)
    stream.guide.forced = lambda: [8, 9, 10]
    stream.accept([SampledToken(7, -1.0, None)], "m")
    assert stream.forced_tokens == [8]


def test_counts(make):
    """Generated ids are counted where a penalty needs it."""
    stream = make(presence_penalty=1.0)
    for token in (8, 9, 8):
        stream.output(SampledToken(token, -1.0, None), None)
    assert stream.rows(range(2, 3))[0].counts == {8: 2, 9: 1}


def test_outputs(make):
    """Usage comes with the last output alone."""
    stream = make()
    first = stream.output(SampledToken(8, -1.0, ((8, -1.0),)), None)
    last = stream.output(SampledToken(2, -0.5, None), "stop")
    assert (first.token, first.logprob, first.top_logprobs, first.usage) == (8, -1.0, ((8, -1.0),), None)
    assert (last.finish_reason, last.usage) == ("stop", Usage(2, 2))
    assert (stream.ending("cancelled").token, stream.ending("cancelled").finish_reason) == (None, "cancelled")
