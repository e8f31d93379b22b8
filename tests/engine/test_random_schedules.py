"""Nobody starves and no block is lost, whatever arrives, pauses and leaves."""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmtool.engine.plan import Plan
from lmtool.engine.prefix_cache import PrefixCache
from tests.engine.scheduling import CHUNK, EOS, LIMITS, generate, make, score, shape, step


def commit(scheduler, alive, plan, token):
    """Record a step for those who still need it; who ends is there no longer."""
    spans = [span for span in plan.spans if span.start == span.sequence.computed and not span.sequence.idle]
    taken = [[token] if span.logits and not span.sequence.scored else [] for span in spans]
    for span, reason in zip(spans, scheduler.commit(Plan(spans), taken), strict=True):
        if reason is not None:
            del alive[span.sequence.number]


class RandomSchedules(RuleBasedStateMachine):
    """Any mix of arrivals, pauses, cancels and steps, with little memory; prompts are of one or two texts.

    Some steps are planned ahead of the outcome of the one before.
    """

    cache_of = staticmethod(lambda: None)
    limits: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.cache = self.cache_of()
        limits = {"max_streams": 3, "max_batch_tokens": 12, **self.limits}
        self.scheduler, self.allocator = make(blocks=8, cache=self.cache, **limits)
        self.alive = {}
        self.number = 0
        self.ahead = None

    @rule(
        prompt=st.integers(1, 30),
        new=st.integers(1, 20),
        scored=st.booleans(),
        text=st.integers(1, 2),
        client=st.integers(1, 3),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def arrive(self, prompt, new, scored, text, client, priority):
        """A new stream, if it can fit at all."""
        self.number += 1
        sequence = score(self.number, prompt, new) if scored else generate(self.number, prompt, new)
        sequence.tokens = [text] * len(sequence.tokens)
        sequence.client, sequence.priority = client, priority
        if self.scheduler.fits(sequence.capacity):
            self.scheduler.add(sequence)
            self.alive[self.number] = sequence

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), paused=st.booleans(), masking=st.sampled_from([False, False, True]))
    def pause(self, data, paused, masking):
        """Some stream is paused, or waits for its mask, or goes on."""
        sequence = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        sequence.paused, sequence.masking = paused, masking

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data):
        """Some stream is cancelled."""
        self.scheduler.remove(self.alive.pop(data.draw(st.sampled_from(sorted(self.alive)))))

    @precondition(lambda self: self.ahead is None)
    @rule(token=st.sampled_from([1, 1, 1, EOS]))
    def run(self, token):
        """A step; if anyone could run, someone did. Who waits for a mask keeps its blocks, and others wait for them."""
        spans, ended = step(self.scheduler, token)
        masking = any(sequence.masking for sequence in self.alive.values())
        assert spans or masking or all(sequence.paused for sequence in self.alive.values())
        assert all(not self.alive[number].idle for number in spans)
        for number in ended:
            del self.alive[number]

    @rule(token=st.sampled_from([1, 1, 1, EOS]), goes_on=st.booleans())
    def run_ahead(self, token, goes_on):
        """A step, planned ahead or not, with the next one planned ahead of its outcome, where that can be.

        If nobody ends, that is the one that would be planned afterwards.
        """
        plan = self.ahead or self.scheduler.plan()
        afterwards = deepcopy((self.scheduler, self.alive, plan))
        self.ahead = self.scheduler.plan_ahead(plan) if goes_on else None
        if self.ahead is not None:
            scheduler, alive, copied = afterwards
            commit(scheduler, alive, copied, 1)
            assert shape(self.ahead) == shape(scheduler.plan())
        commit(self.scheduler, self.alive, plan, token)

    @invariant()
    def no_block_is_lost_or_shared(self):
        """Free, kept and held blocks make up all blocks; nobody holds another's but those of kept chunks."""
        held = [block for sequence in self.alive.values() for block in sequence.own_blocks]
        assert len(set(held)) == len(held)
        kept = 0 if self.cache is None else self.cache.blocks
        assert len(held) + kept + self.allocator.free == self.allocator.total

    @invariant()
    def kept_chunks_know_their_users(self):
        """A chunk is used as often as streams say, and holds what their ids say."""
        for sequence in self.alive.values():
            for n, prefix in enumerate(sequence.prefixes):
                assert prefix.users == sum(prefix in other.prefixes for other in self.alive.values())
                assert prefix.key[1] == tuple(sequence.tokens[n * CHUNK : (n + 1) * CHUNK])
                assert list(prefix.blocks) == sequence.blocks[2 * n : 2 * n + 2]

    @invariant()
    def every_position_has_its_block(self):
        """What counts as computed has a place."""
        for sequence in self.alive.values():
            assert len(sequence.blocks) * LIMITS.block_tokens >= sequence.computed
            assert sequence.computed <= sequence.target

    def teardown(self):
        """Nobody starves: once all go on and nobody arrives, every stream ends, with all its tokens."""
        if self.ahead is not None:
            commit(self.scheduler, self.alive, self.ahead, 1)
        for sequence in self.alive.values():
            sequence.paused = sequence.masking = False
        for _ in range(2000):
            if not self.alive:
                break
            for number, reason in step(self.scheduler)[1].items():
                sequence = self.alive.pop(number)
                assert reason == ("stop" if sequence.scored else "length")
                assert len(sequence.tokens) == sequence.max_length
        assert not self.alive
        kept = 0 if self.cache is None else self.cache.idle_blocks
        assert self.allocator.free + kept == self.allocator.total


class RandomSchedulesWithPrefixes(RandomSchedules):
    """The same with a prefix cache."""

    cache_of = staticmethod(lambda: PrefixCache(CHUNK))


TestRandomSchedules = RandomSchedules.TestCase
TestRandomSchedules.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRandomSchedulesWithPrefixes = RandomSchedulesWithPrefixes.TestCase
TestRandomSchedulesWithPrefixes.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
