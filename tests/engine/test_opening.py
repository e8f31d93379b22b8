"""What a request becomes, and which ones are refused."""

from __future__ import annotations

import asyncio

import pytest
import torch

from lmtool.engine.opening import Opening
from lmtool.errors import ConstraintError, RequestError
from lmtool.types import GenerateRequest, ModelInfo, NamedProcessor, SamplingParams, ScoreRequest
from tests.engine.guiding import StepCompiler, steps

INFO = ModelInfo("m", "c", "random", vocab_size=50, context_length=20, eos_token_ids=(2,), bos_token_id=1)


def ignore(outputs):
    """A sink for nobody."""


@pytest.fixture
def opened():
    """Open a request."""
    loop = asyncio.new_event_loop()

    def open_one(request, *, guides=None, drafts=True, jumps=True):
        opening = Opening(INFO, torch.device("cpu"), drafts=drafts, jumps=jumps)
        opening.guides = guides
        return opening.open(request, ignore, loop)

    yield open_one
    loop.close()


def test_generate(opened):
    """The stream ends at `max_tokens` or with the context, and at the model's eos or the request's own ids."""
    stream = opened(GenerateRequest("s", (3, 4), SamplingParams(max_tokens=99, stop_token_ids=(7,)), priority=3))
    sequence = stream.sequence
    assert (sequence.tokens, sequence.prompt_length, sequence.max_length) == ([3, 4], 2, 20)
    assert (sequence.stop_ids, sequence.priority, sequence.held, sequence.client) == ({2, 7}, 3, False, ignore)
    assert opened(GenerateRequest("s", (3,), SamplingParams(ignore_eos=True))).sequence.stop_ids == frozenset()


def test_score(opened):
    """All ids are known from the start."""
    sequence = opened(ScoreRequest("s", (3, 4), (5, 6))).sequence
    assert (sequence.tokens, sequence.prompt_length, sequence.max_length, sequence.scored) == ([3, 4, 5, 6], 2, 4, True)


def test_constraint(opened):
    """A constrained stream is held until its constraint is there, and ends with eos or a stop id."""
    request = GenerateRequest("s", (3,), SamplingParams(stop_token_ids=(7,), ignore_eos=True), constraint=steps("7"))
    stream = opened(request, guides=StepCompiler(2, at_once=False), jumps=False)
    assert (stream.sequence.held, stream.sequence.stop_ids, stream.jumps) == (True, {2, 7}, False)
    with pytest.raises(ConstraintError, match="cannot hold"):
        opened(request)


@pytest.mark.parametrize(
    ("sampling", "drafted"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=1.0, min_tokens=3), True),
        (SamplingParams(repetition_penalty=1.1), False),
        (SamplingParams(presence_penalty=1.0), False),
        (SamplingParams(frequency_penalty=1.0), False),
    ],
)
def test_who_is_drafted(opened, sampling, drafted):
    """Nothing is guessed for a stream whose every token changes how the next one is drawn, nor where it is off."""
    request = GenerateRequest("s", (3,), sampling)
    assert (opened(request).drafter is not None) == drafted
    assert opened(request, drafts=False).drafter is None


def test_constrained_streams_that_may_not_end(opened):
    """With `min_tokens` or `ignore_eos` beside a constraint, each row would need the constraint's place at that row."""
    for sampling, drafted in ((SamplingParams(), True), (SamplingParams(min_tokens=2), False)):
        stream = opened(GenerateRequest("s", (3,), sampling, constraint=steps("7")), guides=StepCompiler(2))
        assert (stream.drafter is not None) == drafted


def test_refused_before_anything_is_compiled(opened):
    """A bad prompt or an unknown processor raises, and no compilation is left behind."""
    guides = StepCompiler(2, at_once=False)
    unknown = (NamedProcessor("no such processor", {}),)
    for request in (
        GenerateRequest("s", (99,), constraint=steps("7")),
        GenerateRequest("s", (3,), constraint=steps("7"), logits_processors=unknown),
    ):
        with pytest.raises(RequestError):
            opened(request, guides=guides)
    assert guides.waiting == []
