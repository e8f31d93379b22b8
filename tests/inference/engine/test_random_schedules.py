"""Whatever arrives, pauses, ends and runs ahead: no block is lost, every stream ends."""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.plan import Plan
from lmtool.inference.engine.prefix_cache import PrefixCache
from tests.inference.engine.conftest import bits
from tests.inference.engine.scheduling import (
    CHUNK,
    EOS,
    LIMITS,
    cached_blocks,
    generate,
    make,
    prompt_of,
    score,
    shape,
    step,
)


def commit(scheduler, alive, plan, token):
    """Record a step for those who still need it; who ends is there no longer."""
    spans = [span for span in plan.spans if span.start == span.sequence.computed and not span.sequence.idle]
    taken = [[token] if span.logits and not span.sequence.scoring else [] for span in spans]
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
        sequence.paused, sequence.awaiting_mask = paused, masking

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
        masking = any(sequence.awaiting_mask for sequence in self.alive.values())
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
        kept = 0 if self.cache is None else cached_blocks(self.cache)
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
            sequence.paused = sequence.awaiting_mask = False
        for _ in range(2000):
            if not self.alive:
                break
            for number, reason in step(self.scheduler)[1].items():
                sequence = self.alive.pop(number)
                assert reason == ("stop" if sequence.scoring else "length")
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


class FreelyCut(RandomSchedulesWithPrefixes):
    """Random schedules with prompts cut anywhere, and later positions that take longer."""

    limits: ClassVar = {"free_cuts": True, "cache_generated": True, "doubling_position": 16, "prompt_share": 1}


TestFreelyCut = FreelyCut.TestCase
TestFreelyCut.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def running(count: int, **limits: object):
    """A scheduler with so many streams that decode."""
    scheduler, _ = make(max_streams=count + 4, max_batch_tokens=100, free_cuts=True, prompt_share=1, **limits)
    for number in range(count):
        scheduler.add(generate(number, 1, new=90))
    step(scheduler)
    return scheduler


def test_a_step_is_filled_to_the_token():
    """A prompt gets exactly its share, and goes on where it was cut."""
    scheduler = running(11)
    scheduler.add(generate(20, 40))
    assert [step(scheduler)[0][20] for _ in range(4)] == [(0, 11), (11, 11), (22, 11), (33, 7)]


def test_several_prompts_share_a_step():
    """What the first one leaves is the next one's."""
    scheduler = running(11)
    scheduler.add(generate(20, 9))
    scheduler.add(generate(21, 9))
    spans, _ = step(scheduler)
    assert (spans[20], spans[21]) == ((0, 9), (0, 7))  # a chunk for each, which is more than a token for each stream


def test_later_positions_count_more():
    """Where a token takes twice as long, half as many fit into a step; one in any case."""
    scheduler = running(11, doubling_position=40)
    scheduler.add(generate(20, 90))
    pieces = []
    while not pieces or sum(pieces) < 90:
        pieces.append(step(scheduler)[0][20][1])
    assert pieces[0] == 10  # eight at once, two more behind them
    assert pieces[:-1] == sorted(pieces[:-1], reverse=True)
    assert min(pieces[:-1]) <= 4


def test_alone_it_takes_all_there_is():
    """A prompt that disturbs nobody is computed as fast as steps allow."""
    scheduler, _ = make(max_batch_tokens=100, free_cuts=True, prompt_share=1)
    scheduler.add(generate(1, 150))
    assert [step(scheduler)[0][1] for _ in range(2)] == [(0, 100), (100, 50)]


def test_scored_rows_stay_limited():
    """Rows of logits are what a step has fewest of: then a chunk waits, or is the step's only one."""
    scheduler, _ = make(max_batch_tokens=100, max_scored_rows=16, free_cuts=True)
    scheduler.add(score(1, prompt=1, scored=60))
    assert step(scheduler)[0] == {1: (0, 16)}


def test_generated_text_is_kept():
    """A prompt that begins with what another stream has said goes on behind it, as far as chunks are whole."""
    scheduler, _ = make(cache=PrefixCache(CHUNK), cache_generated=True)
    first = prompt_of(1, range(5))
    first.max_length = 20
    scheduler.add(first)
    while not step(scheduler, token=7)[1]:
        pass
    scheduler.add(prompt_of(2, [*first.tokens, 50]))
    assert step(scheduler)[0] == {2: (16, 5)}


def test_what_gave_way_is_computed_in_chunks():
    """Positions behind the prompt, too, are computed again as prompts are."""
    sequence = generate(1, 9, new=30)
    sequence.tokens += [1] * 20
    sequence.recompute_to = 28  # as when it gave way
    scheduler, _ = make(max_batch_tokens=100, cache_generated=True)
    scheduler.add(sequence)
    assert step(scheduler)[0] == {1: (0, 29)}


@given(prompt=st.integers(1, 40), said=st.integers(1, 40), more=st.integers(1, 20))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_next_turn_has_the_same_bits(prompt, said, more, engine_of, run, runner, random_ids):
    """A conversation's next prompt, whose beginning was generated, gives what it gives where nothing is kept."""
    first = GenerateRequest(1, random_ids(prompt, seed=prompt), SamplingParams(max_tokens=said, ignore_eos=True))
    kept, fresh = engine_of("llama"), engine_of("llama", prefix_cache=False)

    async def turns(engine):
        outputs = (await run(engine, first))[1]
        ids = (*first.prompt, *(output.token for output in outputs), *random_ids(more, seed=99))
        request = GenerateRequest(2, ids, SamplingParams(max_tokens=6, ignore_eos=True, top_logprobs=3))
        return (await run(engine, request))[2]

    ours, theirs = runner.run(turns(kept)), runner.run(turns(fresh))
    assert bits(ours) == bits(theirs)
    computed = prompt + said - 1  # the last id is sent, and not computed
    assert ours[-1].usage.cached_tokens >= computed // 16 * 16
    assert theirs[-1].usage.cached_tokens == 0
