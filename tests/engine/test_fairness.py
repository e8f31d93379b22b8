"""Thousands of random schedules: nobody starves, no block is lost, no stream is, whatever is drafted or forced."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.engine.block_allocator import BlockAllocator
from lmtool.engine.plan import Limits
from lmtool.engine.prefix_cache import PrefixCache
from lmtool.engine.scheduler import Scheduler
from lmtool.engine.sequence import Sequence
from lmtool.engine.waiting_line import OVERTAKING, WaitingLine

EOS = 0


class Simulation:
    """A scheduler whose model draws ids at random; drafts are right by chance, and a few ids are forced."""

    def __init__(self, seed):
        random = self.random = Random(seed)
        chunk = random.choice([4, 8])
        cache = PrefixCache(chunk) if random.random() < 0.5 else None
        limits = Limits(random.randrange(1, 5), random.randrange(1, 30), chunk, 4, random.randrange(4, 20))
        self.allocator = BlockAllocator(random.randrange(8, 20))
        self.scheduler = Scheduler(limits, self.allocator, cache)
        self.alive = {}
        self.number = 0
        self.cache = cache

    def arrive(self, *, priority=None, prompt=None, new=None, client=None):
        """A new stream that can fit."""
        random = self.random
        prompt, new = prompt or random.randrange(1, 20), new or random.randrange(1, 12)
        self.number += 1
        ids = [random.choice([1, 1, 1, 2])] * prompt
        scored = priority is None and random.random() < 0.3
        sequence = Sequence(
            self.number,
            ids + [3] * new * scored,
            prompt,
            prompt + new,
            scored=scored,
            stop_ids=frozenset({EOS}),
            priority=random.choice([0, 0, -1, 1]) if priority is None else priority,
            client=client or random.randrange(3),
        )
        assert self.scheduler.fits(sequence.capacity)
        self.scheduler.add(sequence)
        self.alive[self.number] = sequence
        return sequence

    def step(self):
        """Draft, plan, check the plan, draw, and commit; whether anything was computed."""
        random = self.random
        for sequence in self.scheduler.decoding():
            sequence.draft = [random.choice([1, 2]) for _ in range(random.randrange(4))] * (not sequence.forced)
        plan = self.scheduler.plan()
        self._check(plan)
        taken = [self._drawn(span) for span in plan.spans]
        reasons = self.scheduler.commit(plan, taken)
        for span, reason in zip(plan.spans, reasons, strict=True):
            sequence = span.sequence
            if reason is not None:
                assert len(sequence.tokens) <= sequence.max_length
                del self.alive[sequence.number]
            elif not sequence.scored and sequence.decoding and not sequence.forced and random.random() < 0.2:
                room = sequence.max_length - len(sequence.tokens)
                sequence.forced = min(random.randrange(4), room)
                sequence.tokens += [2] * sequence.forced
        return bool(plan.spans)

    def _drawn(self, span):
        sequence = span.sequence
        if sequence.scored:
            return []
        drawn, known = [], len(sequence.tokens)
        for position in span.logits:
            new = position + 1 >= known
            drawn.append(self.random.choice([1, 1, 2, 2, 2, EOS]) if new else sequence.tokens[position + 1])
            if drawn[-1] == EOS:
                break
        return drawn[: sequence.foretold(drawn)]

    def _check(self, plan):
        assert all(span.count > 0 and not span.sequence.paused for span in plan.spans)
        assert len({span.sequence.number for span in plan.spans}) == len(plan.spans)
        for span in plan.spans:
            assert span.end <= len(span.sequence.blocks) * 4
            assert span.end <= len(span.sequence.tokens) + len(span.sequence.draft)
            assert span.end <= max(span.sequence.capacity, 1)

    def check_blocks(self):
        """Each block is free, kept, or held by one."""
        held = [block for sequence in self.alive.values() for block in sequence.own_blocks]
        kept = 0 if self.cache is None else self.cache.blocks
        assert len(set(held)) == len(held)
        assert len(held) + kept + self.allocator.free == self.allocator.total

    def disturb(self):
        """Some stream is paused, goes on, or is cancelled."""
        sequence = self.alive[self.random.choice(sorted(self.alive))]
        if self.random.random() < 0.3:
            self.scheduler.remove(sequence)
            del self.alive[sequence.number]
        else:
            sequence.paused = self.random.random() < 0.5

    def finish(self):
        """Everybody goes on, nobody comes: all end."""
        for sequence in self.alive.values():
            sequence.paused = False
        for _ in range(4000):
            if not self.alive:
                break
            assert self.step(), "somebody waits and nothing is computed"
        assert not self.alive
        self.check_blocks()
        assert (self.scheduler.running, self.scheduler.waiting) == (0, 0)


@pytest.mark.parametrize("part", range(4))
def test_no_stream_and_no_block_is_lost(part):
    """2000 schedules of arrivals, pauses, cancels, drafts and little memory: all end, and all memory is free."""
    for seed in range(500 * part, 500 * part + 500):
        simulation = Simulation(seed)
        for _ in range(simulation.random.randrange(5, 40)):
            event = simulation.random.random()
            if event < 0.4:
                simulation.arrive()
            elif event < 0.55 and simulation.alive:
                simulation.disturb()
            else:
                simulation.step()
            simulation.check_blocks()
        simulation.finish()


@pytest.mark.parametrize("part", range(4))
def test_urgent_traffic_starves_nobody(part):
    """However many urgent streams of however many clients keep coming, a patient one ends in bounded time."""
    for seed in range(40 * part, 40 * part + 40):
        simulation = Simulation(seed)
        patient = simulation.arrive(priority=1000, prompt=9, new=5, client="patient")
        patients = [patient, simulation.arrive(priority=5, prompt=3, new=3, client="patient")]
        others = range(5)
        for _ in range(2000):
            if not any(one.number in simulation.alive for one in patients):
                break
            while simulation.scheduler.waiting < 6:
                client = simulation.random.choice([*others, f"new {simulation.number}"])
                simulation.arrive(priority=-simulation.random.randrange(3), client=client)
            simulation.step()
        assert not any(one.number in simulation.alive for one in patients), seed
        simulation.finish()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-3, 3), st.integers(0, 2)), max_size=80))
@settings(max_examples=200)
def test_waiting_is_bounded(events):
    """A sequence that k others came before gets a place after at most 8 (k + 1) of them."""
    line, before, places = WaitingLine(), {}, {}

    def serve():
        first = next(iter(line))
        line.serve(first)
        for number in places:
            places[number] += 1
        assert places.pop(first.number) <= (OVERTAKING + 1) * (before[first.number] + 1)

    for number, (client, priority, count) in enumerate(events):
        before[number], places[number] = len(line), 0
        line.join(Sequence(number, [1], 1, 2, client=client, priority=priority))
        for _ in range(min(count, len(line))):
            serve()
    while len(line):
        serve()
