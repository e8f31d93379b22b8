"""Steps that are planned and begun before the previous outcome is known."""

from __future__ import annotations

import asyncio

import pytest
import torch

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.step import RunAheadStep, sample_step
from lmtool.inference.engine.stream import Stream
from tests.inference.engine.scheduling import generate, make, score, shape, step


@pytest.fixture
def streams():
    """A prompt of which a part is computed, one at its end, a text that is scored, and a running stream."""
    loop = asyncio.new_event_loop()
    sequences = [
        Sequence(1, [1] * 40, 40, 50),
        Sequence(2, [1] * 4, 4, 50),
        Sequence(3, [1, 2, 3], 1, 3, scoring=True),
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
    choices = sample_step(plan, streams, logits(4), {}).read()
    assert [[choice.token for choice in own] for own in choices] == [[], [10], [2, 3], [13]]


def test_what_a_constraint_lets_come(streams):
    """A stream's own mask holds for its row."""
    plan = Plan([Span(streams[1].sequence, 0, 4), Span(streams[3].sequence, 2, 1)])
    allowed = {streams[3]: torch.tensor([[1 << 20, 0]], dtype=torch.int32)}
    (first,), (second,) = sample_step(plan, [streams[1], streams[3]], logits(2), allowed).read()
    assert (first.token, second.token) == (10, 20)


def test_no_rows_at_all(streams):
    """A part of a prompt gives no choice."""
    assert sample_step(Plan([Span(streams[0].sequence, 0, 16)]), streams[:1], torch.empty(0, 0), {}).read() == [[]]


def test_ids_of_the_next_step(streams):
    """A step made ahead takes each text's own id, whichever texts it leaves out and in whichever order."""
    _, prompt, scored, running = (stream.sequence for stream in streams)
    plan = Plan([Span(prompt, 0, 4), Span(scored, 0, 2), Span(running, 2, 1)])
    drawn = sample_step(plan, streams[1:], logits(4), {})
    assert drawn.ids(Plan([Span(running, 3, 1), Span(prompt, 4, 1)])).tolist() == [13, 10]
    assert drawn.ids(Plan([Span(running, 3, 1)])).tolist() == [13]


class TestDue:
    """What is left of a step that was begun ahead."""

    @pytest.fixture
    def flight(self):
        """Three sequences whose last id has just come."""
        sequences = [Sequence(number, [1, 2, 3], 1, 50, blocks=[number], computed=2) for number in (1, 2, 3)]
        return RunAheadStep(Plan([Span(sequence, 2, 1) for sequence in sequences]), logits(3))

    def test_all(self, flight):
        """Where nothing happened, all of it, and no copy."""
        due = flight.still_valid()
        assert due.plan.spans == flight.plan.spans
        assert due.outcome.data_ptr() == flight.outcome.data_ptr()

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
        due = flight.still_valid()
        assert [span.sequence.number for span in due.plan.spans] == [1, 3]
        assert due.outcome.argmax(-1).tolist() == [10, 12]

    def test_of_what_was_sampled_already(self, flight, streams):
        """The ids of the others are neither read nor handed to the next step."""
        result = sample_step(Plan([Span(streams[3].sequence, 2, 1)] * 3), [streams[3]] * 3, flight.outcome, {}).result
        sampled = RunAheadStep(flight.plan, result)
        assert sampled.still_valid().outcome is result
        flight.plan.spans[1].sequence.paused = True
        due = sampled.still_valid()
        assert due.outcome.tokens.tolist() == [10, 12]
        assert [one.token for one in due.outcome.read()] == [10, 12]
        assert [span.sequence.number for span in due.plan.spans] == [1, 3]

    def test_nothing(self, flight):
        """There may be nothing left."""
        for span in flight.plan.spans:
            span.sequence.paused = True
        assert flight.still_valid() is None


class TestAhead:
    """The step behind one that is being computed."""

    def running(self, count=2, *, prompt=3, **limits):
        """A scheduler with streams that have their first ids."""
        scheduler, allocator = make(**limits)
        sequences = [generate(number, prompt) for number in range(1, count + 1)]
        for sequence in sequences:
            scheduler.add(sequence)
        step(scheduler)
        return scheduler, allocator, sequences

    def test_each_computes_the_id_that_is_being_drawn(self):
        """One position each, behind all ids that are known; committed in its turn it goes on like any other."""
        scheduler, _, sequences = self.running()
        plan = scheduler.plan()
        ahead = scheduler.plan_ahead(plan)
        assert shape(ahead) == [(1, 4, 1), (2, 4, 1)]
        scheduler.commit(plan, [[7], [7]])
        assert [list(span.logits) for span in ahead.spans] == [[4], [4]]
        scheduler.commit(ahead, [[8], [9]])
        assert [sequence.tokens[3:] for sequence in sequences] == [[1, 7, 8], [1, 7, 9]]
        assert step(scheduler)[0] == {1: (5, 1), 2: (5, 1)}

    def test_behind_a_prompt(self):
        """A prompt's last part brings an id, too."""
        scheduler, _ = make()
        scheduler.add(generate(1, 6))
        assert shape(scheduler.plan_ahead(scheduler.plan())) == [(1, 6, 1)]

    def test_not_behind_a_part_of_a_prompt(self):
        """While a prompt goes on, nothing is known of the next step but by planning it."""
        scheduler, _, _ = self.running(max_batch_tokens=8)
        scheduler.add(generate(3, 20))
        assert scheduler.plan_ahead(scheduler.plan()) is None

    def test_not_while_somebody_could_begin(self):
        """A newcomer is not kept waiting; where there is no place for one, nobody waits for less."""
        for streams, expected in ((4, None), (2, [(1, 4, 1), (2, 4, 1)])):
            scheduler, _, _ = self.running(max_streams=streams)
            plan = scheduler.plan()
            scheduler.add(generate(3, 2))
            ahead = scheduler.plan_ahead(plan)
            assert (ahead and shape(ahead)) == expected

    def test_who_ends_for_certain_is_left_out(self):
        """A stream's last id, and a text that is scored, need no further step; nor does who pauses."""
        scheduler, _, (first, second, _) = self.running(3)
        first.max_length, second.paused = 5, True
        scheduler.add(score(4, 2, 3))
        assert shape(scheduler.plan_ahead(scheduler.plan())) == [(3, 4, 1)]

    def test_nobody_gives_way(self):
        """Where blocks would have to be taken from others, planning as usual decides from whom."""
        for blocks, expected in ((3, None), (4, 2)):
            scheduler, allocator, _ = self.running(blocks=blocks)
            ahead = scheduler.plan_ahead(scheduler.plan())
            assert (ahead and len(ahead.spans)) == expected
            assert allocator.free == (0 if expected else blocks - 2)
