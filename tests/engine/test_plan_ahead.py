"""The step behind one that is being computed, planned before its outcome is known."""

from __future__ import annotations

from tests.engine.scheduling import generate, make, score, shape, step


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
