"""A step between its plan and its outcome."""

from __future__ import annotations

import asyncio

import pytest
import torch

from lmtool.engine.flight import Flight, draw
from lmtool.engine.plan import Plan, Span
from lmtool.engine.sequence import Sequence
from lmtool.engine.stream import Stream
from lmtool.types import SamplingParams


@pytest.fixture
def streams():
    """A prompt of which a part is computed, one at its end, a text that is scored, and a running stream."""
    loop = asyncio.new_event_loop()
    sequences = [
        Sequence(1, [1] * 40, 40, 50),
        Sequence(2, [1] * 4, 4, 50),
        Sequence(3, [1, 2, 3], 1, 3, scored=True),
        Sequence(4, [1, 2, 3], 1, 50, computed=2),
    ]
    yield [Stream(s.number, print, loop, s, SamplingParams(), 0, seed=0) for s in sequences]
    loop.close()


def logits(rows):
    """[rows, 40]: the most likely id is ten and the number of the row."""
    result = torch.zeros(rows, 40)
    result[range(rows), range(10, 10 + rows)] = 5.0
    return result


def test_rows_of_each_span(streams):
    """Each span gets the choices of its own rows: none, one, or as many as it scores."""
    part, prompt, scored, running = (stream.sequence for stream in streams)
    plan = Plan([Span(part, 0, 16), Span(prompt, 0, 4), Span(scored, 0, 2), Span(running, 2, 1)])
    choices = draw(plan, streams, logits(4), {}).choices()
    assert [[choice.token for choice in own] for own in choices] == [[], [10], [2, 3], [13]]


def test_what_a_constraint_lets_come(streams):
    """A stream's own mask holds for its row."""
    plan = Plan([Span(streams[1].sequence, 0, 4), Span(streams[3].sequence, 2, 1)])
    allowed = {streams[3]: torch.tensor([[1 << 20, 0]], dtype=torch.int32)}
    (first,), (second,) = draw(plan, [streams[1], streams[3]], logits(2), allowed).choices()
    assert (first.token, second.token) == (10, 20)


def test_no_rows_at_all(streams):
    """A part of a prompt gives no choice."""
    assert draw(Plan([Span(streams[0].sequence, 0, 16)]), streams[:1], torch.empty(0, 0), {}).choices() == [[]]


def test_ids_of_the_next_step(streams):
    """A step made ahead takes each text's own id, whichever texts it leaves out and in whichever order."""
    _, prompt, scored, running = (stream.sequence for stream in streams)
    plan = Plan([Span(prompt, 0, 4), Span(scored, 0, 2), Span(running, 2, 1)])
    drawn = draw(plan, streams[1:], logits(4), {})
    assert drawn.ids(Plan([Span(running, 3, 1), Span(prompt, 4, 1)])).tolist() == [13, 10]
    assert drawn.ids(Plan([Span(running, 3, 1)])).tolist() == [13]


class TestDue:
    """What is left of a step that was begun ahead."""

    @pytest.fixture
    def flight(self):
        """Three sequences whose last id has just come."""
        sequences = [Sequence(number, [1, 2, 3], 1, 50, blocks=[number], computed=2) for number in (1, 2, 3)]
        return Flight(Plan([Span(sequence, 2, 1) for sequence in sequences]), logits(3))

    def test_all(self, flight):
        """Where nothing happened, all of it, and no copy."""
        due = flight.due()
        assert due.plan.spans == flight.plan.spans
        assert due.logits.data_ptr() == flight.logits.data_ptr()

    @pytest.mark.parametrize(
        "change",
        [
            {"paused": True},
            {"computed": 0, "blocks": []},
            {"tokens": [1, 2, 3, 4]},
            {"tokens": [1, 2]},
        ],
    )
    def test_not_who_needs_something_else(self, flight, change):
        """Neither who pauses, nor who ended, nor who knows more ids or fewer."""
        for name, value in change.items():
            setattr(flight.plan.spans[1].sequence, name, value)
        due = flight.due()
        assert [span.sequence.number for span in due.plan.spans] == [1, 3]
        assert due.logits.argmax(-1).tolist() == [10, 12]

    def test_nothing(self, flight):
        """There may be nothing left."""
        for span in flight.plan.spans:
            span.sequence.paused = True
        assert flight.due() is None
