"""The order of admission: priority, clients in turn, arrival; and no stream starves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.inference.engine.plan import Limits, Sequence
from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from lmtool.inference.engine.scheduler import Scheduler
from lmtool.inference.engine.waiting_queue import MAX_OVERTAKES, WaitingQueue, rank
from tests.inference.engine.scheduling import cached_blocks


def waiting(number, client="a", priority=0):
    """A sequence of a client."""
    return Sequence(number, [1], 1, 2, client=client, priority=priority)


def line_of(*sequences):
    """A line that these joined in order."""
    line = WaitingQueue()
    for sequence in sequences:
        line.join(sequence)
    return line


def serve(line, count=None):
    """The numbers of the first `count` (None: all), as they get their places."""
    numbers = []
    for sequence in line:
        if len(numbers) == count:
            break
        line.serve(sequence)
        numbers.append(sequence.number)
    return numbers


def test_one_client_in_order():
    """A client's own sequences are served in order of arrival."""
    assert serve(line_of(*map(waiting, range(1, 6)))) == [1, 2, 3, 4, 5]


def test_clients_take_turns():
    """Clients that wait at once are served one sequence a round."""
    line = line_of(*[waiting(n) for n in range(1, 5)], *[waiting(n, "b") for n in (5, 6)], waiting(7, "c"))
    assert serve(line) == [1, 5, 7, 2, 6, 3, 4]


def test_a_newcomer_joins_the_round_being_served():
    """Who comes later waits for one of each other client, and catches up nothing for the time it was away."""
    line = line_of(*[waiting(n) for n in range(1, 10)])
    assert serve(line, 4) == [1, 2, 3, 4]
    for number in (10, 11):
        line.join(waiting(number, "b"))
    assert serve(line) == [10, 5, 11, 6, 7, 8, 9]


def test_what_left_the_line_costs_no_turn():
    """Cancelled sequences do not push their client's later ones back."""
    many = [waiting(n) for n in range(1, 10)]
    line = line_of(*many)
    for sequence in many:
        line.remove(sequence)
    line.join(waiting(10, "b"))
    line.join(waiting(11, "b"))
    line.join(waiting(12))
    assert serve(line) == [10, 12, 11]


def test_priority_comes_first():
    """A lower number is served before any higher one, whoever it belongs to; turns hold within a number."""
    line = line_of(waiting(1), waiting(2, "b", 3), waiting(3), waiting(4, "b", -1), waiting(5, "a", -1))
    assert serve(line) == [4, 5, 1, 3, 2]


def test_its_own_place_again():
    """What gave its place back ranks where it did."""
    line = line_of(*[waiting(n) for n in (1, 2, 3)])
    first, *_ = line
    serve(line, 2)
    line.rejoin(first)
    assert first in line
    assert serve(line) == [1, 3]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60))
def test_fair(events):
    """However sequences arrive (a name) and are served (None): while a client waits, no other is two rounds ahead."""
    line, number = WaitingQueue(), 0
    since: dict[str, dict[str, int]] = {}
    for event in events:
        if event is not None:
            number += 1
            line.join(waiting(number, event))
            since.setdefault(event, {})
        elif len(line):
            first = next(iter(line))
            line.serve(first)
            for client, others in since.items():
                others[first.client] = 0 if client == first.client else others.get(first.client, 0) + 1
            if first.client in since:
                since[first.client] = {}
        since = {client: others for client, others in since.items() if any(s.client == client for s in line)}
        assert all(count <= 2 for others in since.values() for count in others.values())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.booleans()), max_size=60))
def test_newcomers_rank_behind_the_served(events):
    """Nobody who joins ranks before one that has a place, unless it is more urgent."""
    line, served = WaitingQueue(), []
    for number, (client, priority, serves) in enumerate(events):
        joined = waiting(number, client, priority)
        line.join(joined)
        assert all(rank(joined) > rank(other) for other in served if joined.priority >= other.priority)
        if serves:
            served.append(next(iter(line)))
            line.serve(served[-1])


def test_coming_back_at_once_gains_nothing():
    """A client that sends its next request as soon as one is served does not keep another's second one waiting."""
    line = line_of(*[waiting(n) for n in (1, 2, 3)], waiting(4, "b"))
    assert serve(line, 2) == [1, 4]
    line.join(waiting(5, "b"))
    assert serve(line, 1) == [2]


def test_waiting_ages():
    """After seven others that came later, whoever has waited longest is next, and keeps its place against all."""
    line = line_of(waiting(1, "a", 9), *[waiting(n, "b", -5) for n in range(2, 20)])
    patient = next(s for s in line if s.number == 1)
    assert serve(line, 9) == [2, 3, 4, 5, 6, 7, 8, 1, 9]
    assert rank(patient) < rank(waiting(0, "b", -5))


def test_the_paused_do_not_age():
    """A paused sequence is passed over, and holds nobody up."""
    line = line_of(waiting(1), *[waiting(n, "b", -5) for n in range(2, 20)])
    next(s for s in line if s.number == 1).paused = True
    assert serve(line) == list(range(2, 20))


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
            scoring=scored,
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
            sequence.draft = [random.choice([1, 2]) for _ in range(random.randrange(4))] * (not sequence.forced_count)
        plan = self.scheduler.plan()
        self._check(plan)
        taken = [self._drawn(span) for span in plan.spans]
        reasons = self.scheduler.commit(plan, taken)
        for span, reason in zip(plan.spans, reasons, strict=True):
            sequence = span.sequence
            if reason is not None:
                assert len(sequence.tokens) <= sequence.max_length
                del self.alive[sequence.number]
            elif not sequence.scoring and sequence.decoding and not sequence.forced_count and random.random() < 0.2:
                room = sequence.max_length - len(sequence.tokens)
                sequence.forced_count = min(random.randrange(4), room)
                sequence.tokens += [2] * sequence.forced_count
        return bool(plan.spans)

    def _drawn(self, span):
        sequence = span.sequence
        if sequence.scoring:
            return []
        drawn, known = [], len(sequence.tokens)
        for position in span.logits:
            new = position + 1 >= known
            drawn.append(self.random.choice([1, 1, 2, 2, 2, EOS]) if new else sequence.tokens[position + 1])
            if drawn[-1] == EOS:
                break
        return drawn[: sequence.count_valid(drawn)]

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
        kept = 0 if self.cache is None else cached_blocks(self.cache)
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
    line, before, places = WaitingQueue(), {}, {}

    def serve():
        first = next(iter(line))
        line.serve(first)
        for number in places:
            places[number] += 1
        assert places.pop(first.number) <= (MAX_OVERTAKES + 1) * (before[first.number] + 1)

    for number, (client, priority, count) in enumerate(events):
        before[number], places[number] = len(line), 0
        line.join(Sequence(number, [1], 1, 2, client=client, priority=priority))
        for _ in range(min(count, len(line))):
            serve()
    while len(line):
        serve()


def test_places():
    """The place of each in order of service; None for what does not wait."""
    line = line_of(waiting(0), waiting(1), waiting(2, client="b"), waiting(3, priority=-1))
    sequences = {sequence.number: sequence for sequence in line}
    assert [line.place(sequences[number]) for number in (3, 0, 2, 1)] == [1, 2, 3, 4]
    line.serve(sequences[3])
    assert [line.place(sequences[number]) for number in (3, 0)] == [None, 1]
