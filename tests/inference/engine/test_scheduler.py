"""Who runs in a step: decode first, then prompts in chunks, in arrival order; nobody starves, no block is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.inference.engine.plan import Sequence
from lmtool.inference.engine.prefix_cache import PrefixCache
from tests.inference.engine.scheduling import CHUNK, EOS, generate, make, prompt_of, score, step


class TestOrder:
    """Decode first, then prompts, in order of arrival."""

    def test_a_new_stream_joins_at_the_next_step(self):
        """A prompt that arrives while others decode is computed beside them."""
        scheduler, _ = make()
        scheduler.add(generate(1, 3))
        assert step(scheduler)[0] == {1: (0, 3)}
        scheduler.add(generate(2, 5))
        assert step(scheduler)[0] == {1: (3, 1), 2: (0, 5)}
        assert step(scheduler)[0] == {1: (4, 1), 2: (5, 1)}

    def test_prompts_share_the_budget_in_arrival_order(self):
        """The first prompt takes the whole chunks that fit, the next one what is left."""
        scheduler, _ = make(max_batch_tokens=20)
        scheduler.add(generate(1, 30))
        scheduler.add(generate(2, 4))
        assert step(scheduler)[0] == {1: (0, 16), 2: (0, 4)}
        assert step(scheduler)[0] == {2: (4, 1), 1: (16, 14)}

    def test_chunks_end_at_fixed_positions(self):
        """Where a prompt is cut depends on the position alone, not on who else runs."""
        scheduler, _ = make(max_batch_tokens=13)
        for number in (1, 2, 3):
            scheduler.add(generate(number, 21))
        ends = set()
        for _ in range(20):
            ends |= {start + count for start, count in step(scheduler)[0].values() if start < 21}
        assert ends <= {8, 16, 21}

    def test_a_full_step_still_takes_one_chunk(self):
        """When running streams use up the budget, a prompt still gets one chunk a step."""
        scheduler, _ = make(max_batch_tokens=2)
        for number in (1, 2, 3):
            scheduler.add(generate(number, 1, new=30))
            step(scheduler)
        scheduler.add(generate(4, 20))
        spans, _ = step(scheduler)
        assert spans[4] == (0, 8)
        assert all(spans[number][1] == 1 for number in (1, 2, 3))

    def test_no_more_than_max_streams(self):
        """A stream waits while `max_streams` others run, and takes the place of the first that ends."""
        scheduler, _ = make(max_streams=1)
        scheduler.add(generate(1, 1, new=2))
        scheduler.add(generate(2, 1, new=1))
        assert [sorted(step(scheduler)[0]) for _ in range(3)] == [[1], [1], [2]]


class TestTurns:
    """Who gets a place when there are few."""

    def test_connections_take_turns(self):
        """Another client's stream takes the next free place, and not the one behind all that came before it."""
        scheduler, _ = make(max_streams=1)
        for number in (1, 2, 3):
            scheduler.add(generate(number, 3, new=1))
        step(scheduler)
        other = generate(4, 3, new=1)
        other.client = "other"
        scheduler.add(other)
        assert [list(step(scheduler)[0]) for _ in range(3)] == [[4], [2], [3]]

    def test_priority(self):
        """A more urgent stream takes the next free place; who has a place keeps it."""
        scheduler, _ = make(max_streams=1)
        scheduler.add(generate(1, 3, new=2))
        scheduler.add(generate(2, 3, new=1))
        step(scheduler)
        urgent = generate(3, 3, new=1)
        urgent.priority = -1
        scheduler.add(urgent)
        assert [list(step(scheduler)[0]) for _ in range(3)] == [[1], [3], [2]]

    def test_the_least_urgent_gives_way(self):
        """When memory runs out, a less urgent stream is preempted before one that came later."""
        scheduler, _ = make(blocks=4)
        first, urgent = generate(1, 3, new=12), generate(2, 3, new=12)
        urgent.priority = -1
        scheduler.add(first)
        scheduler.add(urgent)
        ended = [number for _ in range(40) for number in step(scheduler)[1]]
        assert ended == [2, 1]


class TestEndings:
    """Why and when a stream ends."""

    def test_length(self):
        """`max_length` ends with `length`; the blocks are free at once."""
        scheduler, allocator = make()
        scheduler.add(generate(1, 2, new=1))
        assert step(scheduler)[1] == {1: "length"}
        assert allocator.free == allocator.total

    def test_stop(self):
        """A stop id ends with `stop`, also when it is the last token allowed."""
        scheduler, _ = make()
        scheduler.add(generate(1, 2, new=1))
        assert step(scheduler, token=EOS)[1] == {1: "stop"}

    def test_score(self):
        """A SCORE stream ends with `stop` in the step of its last id, and gets rows for scored ids alone."""
        scheduler, _ = make()
        scheduler.add(score(1, prompt=3, scored=10))
        plan = scheduler.plan()
        assert [list(span.logits) for span in plan.spans] == [list(range(2, 12))]
        assert scheduler.commit(plan, [[]]) == ["stop"]

    def test_scored_rows_are_limited(self):
        """A long SCORE needs many rows of logits: a step takes `max_scored_rows` of them, or one chunk."""
        scheduler, _ = make(max_batch_tokens=100, max_scored_rows=16)
        scheduler.add(score(1, prompt=1, scored=60))
        assert step(scheduler)[0] == {1: (0, 16)}


class TestPause:
    """A paused stream keeps its place but does not run."""

    def test_keeps_its_place(self):
        """After `paused` is lifted the stream goes on where it stood."""
        scheduler, _ = make()
        sequence = generate(1, 3)
        scheduler.add(sequence)
        step(scheduler)
        sequence.paused = True
        assert step(scheduler)[0] == {}
        sequence.paused = False
        assert step(scheduler)[0] == {1: (3, 1)}

    def test_does_not_hold_a_place(self):
        """Others run in the place of a paused stream."""
        scheduler, _ = make(max_streams=1)
        sequence = generate(1, 3)
        scheduler.add(sequence)
        step(scheduler)
        sequence.paused = True
        scheduler.add(generate(2, 3))
        assert step(scheduler)[0] == {2: (0, 3)}

    def test_gives_way(self):
        """When memory is short a paused stream gives way, and is computed again when it goes on."""
        scheduler, _ = make(blocks=4)
        sequence = generate(1, 9)
        scheduler.add(sequence)
        step(scheduler)
        sequence.paused = True
        scheduler.add(generate(2, 9, new=1))
        assert step(scheduler)[0] == {2: (0, 9)}
        sequence.paused = False
        assert step(scheduler)[0] == {1: (0, 10)}


class TestMemory:
    """When blocks run out, those who came first go on."""

    def test_waits_for_memory(self):
        """A stream whose known ids do not fit waits, and those behind it do too."""
        scheduler, _ = make(blocks=6)
        scheduler.add(generate(1, 8, new=3))
        scheduler.add(generate(2, 16))
        scheduler.add(generate(3, 1))
        assert sorted(step(scheduler)[0]) == [1]
        assert scheduler.waiting == 2

    def test_the_latest_gives_way(self):
        """When a running stream needs a block and none is free, the latest arrival is preempted and later redone."""
        scheduler, _ = make(blocks=4)
        scheduler.add(generate(1, 3, new=12))
        scheduler.add(generate(2, 3, new=12))
        seen = [step(scheduler) for _ in range(40)]
        restarts = [spans[2] for spans, _ in seen if spans.get(2, (1, 0))[0] == 0]
        assert len(restarts) > 1
        assert restarts[1][1] > 3
        assert {n: r for _, ended in seen for n, r in ended.items()} == {1: "length", 2: "length"}

    def test_generated_ids_are_redone_alone(self):
        """Positions behind the prompt are no chunk: each may be the end of a step."""
        sequence = generate(1, 9, new=30)
        sequence.tokens += [1] * 20
        sequence.recompute_to = 28  # as when it gave way
        scheduler, _ = make(max_batch_tokens=19)
        scheduler.add(sequence)
        assert step(scheduler)[0] == {1: (0, 19)}
        assert step(scheduler)[0] == {1: (19, 10)}

    def test_what_can_never_fit(self):
        """`fits` tells whether a sequence of so many positions can be computed at all."""
        scheduler, _ = make(blocks=4)
        assert scheduler.fits(16)
        assert not scheduler.fits(17)


class TestKeptPrefixes:
    """Whole chunks of prompts are used again."""

    def test_a_kept_beginning_is_not_computed(self):
        """A prompt goes on behind the chunks that are there, with the very same blocks."""
        scheduler, _ = make(cache=PrefixCache(CHUNK))
        first, second = prompt_of(1, range(20)), prompt_of(2, [*range(17), 50, 51])
        scheduler.add(first)
        assert step(scheduler)[0] == {1: (0, 20)}
        scheduler.add(second)
        assert step(scheduler)[0] == {1: (20, 1), 2: (16, 3)}
        assert second.blocks[:4] == first.blocks[:4]
        assert (first.cached_tokens, second.cached_tokens) == (0, 16)

    def test_one_computes_for_all(self):
        """A prompt waits while another one computes its beginning; who shares nothing does not."""
        scheduler, _ = make(cache=PrefixCache(CHUNK), max_batch_tokens=8)
        for number in (1, 2):
            scheduler.add(prompt_of(number, [*range(16), number]))
        scheduler.add(prompt_of(3, [9]))
        assert step(scheduler)[0] == {1: (0, 8)}
        assert step(scheduler)[0] == {1: (8, 8)}
        assert step(scheduler)[0] == {1: (16, 1), 2: (16, 1), 3: (0, 1)}

    def test_a_salt_is_a_compartment(self):
        """Chunks of another salt are neither used nor waited for; those of the same salt are both."""
        scheduler, _ = make(cache=PrefixCache(CHUNK))
        first, other, same = (prompt_of(number, [*range(16), number]) for number in (1, 2, 3))
        other.cache_salt = "mine"
        for sequence in (first, other, same):
            scheduler.add(sequence)
        starts: dict[int, int] = {}
        while len(starts) < 3:
            for number, (start, _) in step(scheduler)[0].items():
                starts.setdefault(number, start)
        assert starts == {1: 0, 2: 0, 3: 16}
        assert (other.cached_tokens, same.cached_tokens) == (0, 16)
        assert not {*first.blocks[:4]} & {*other.blocks}

    def test_kept_blocks_give_way(self):
        """What nobody uses is handed out when blocks are needed, and is cleared before use."""
        scheduler, allocator = make(blocks=6, cache=PrefixCache(CHUNK))
        scheduler.add(Sequence(1, list(range(17)), 17, 18))
        assert step(scheduler)[1] == {1: "length"}
        assert allocator.free == 2
        scheduler.add(prompt_of(2, range(100, 117)))
        plan = scheduler.plan()
        assert [(span.start, span.count) for span in plan.spans] == [(0, 17)]
        assert len(set(plan.fresh_blocks)) == 5

    def test_forgotten(self):
        """Of what nobody uses as much stays as asked for; the memory of all other free blocks is nobody's."""
        cache = PrefixCache(CHUNK)
        scheduler, _ = make(cache=cache)
        scheduler.add(Sequence(1, list(range(17)), 17, 18))
        scheduler.add(prompt_of(2, [50]))
        step(scheduler)
        assert list(scheduler.forget(2)) == [(3, 3)]
        assert len(cache.match(list(range(17)), 16)) == 1
        assert list(scheduler.forget(0)) == [(1, 2)]
        assert list(scheduler.forget(0)) == []

    def test_what_was_preempted_is_found_again(self):
        """Recomputing after a preemption begins behind the chunks that stayed; it is not counted as a hit."""
        cache = PrefixCache(CHUNK)
        scheduler, _ = make(blocks=8, cache=cache)
        elder, later = prompt_of(1, range(3)), prompt_of(2, range(50, 67))
        elder.max_length = 17
        for sequence in (elder, later):
            scheduler.add(sequence)
        step(scheduler)
        later.paused = True
        while len(elder.tokens) < 14:
            step(scheduler)
        assert later.blocks == []
        later.paused = False
        spans = {}
        while 2 not in spans:
            spans, _ = step(scheduler)
        assert spans[2][0] in {8, 16}
        assert later.cached_tokens == 0


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=12))
@settings(deadline=None)
def test_first_come_first_served(shapes):
    """With equal work to do, nobody who came later ends before one who came earlier."""
    scheduler, _ = make(blocks=40, max_streams=3)
    prompt, new = shapes[0]
    for number in range(1, len(shapes) + 1):
        scheduler.add(generate(number, prompt, new))
    order = []
    while scheduler.running or scheduler.waiting:
        order += sorted(step(scheduler)[1])
    assert order == sorted(order)


class TestSeveralIdsAStep:
    """Known and drafted ids of a running stream are computed in one step."""

    def running(self, *, blocks=100, new=20, prompt=3):
        """A scheduler with one stream that has its first id."""
        scheduler, allocator = make(blocks=blocks)
        sequence = generate(1, prompt, new=new)
        scheduler.add(sequence)
        step(scheduler)
        return scheduler, allocator, sequence

    def test_a_draft_is_computed_behind_the_known_ids(self):
        """Each of its positions wants logits; what the model drew itself stays."""
        scheduler, _, sequence = self.running()
        sequence.draft = [7, 8, 9]
        plan = scheduler.plan()
        assert [(span.start, span.count, list(span.logits)) for span in plan.spans] == [(3, 4, [3, 4, 5, 6])]
        assert sequence.ids(2, 6) == [1, 1, 7, 8]
        drawn = [7, 8, 5, 9]
        assert sequence.count_valid(drawn) == 3
        scheduler.commit(plan, [drawn[:3]])
        assert (sequence.tokens[3:], sequence.computed, sequence.draft) == ([1, 7, 8, 5], 6, [])
        assert step(scheduler)[0] == {1: (6, 1)}

    def test_a_draft_ends_with_the_stream(self):
        """No more is drafted than the stream may still say: the last id is drawn, and never computed."""
        scheduler, _, sequence = self.running(new=4)
        sequence.draft = [7] * 9
        plan = scheduler.plan()
        assert [span.count for span in plan.spans] == [3]
        assert scheduler.commit(plan, [[7, 7, 7]]) == ["length"]

    def test_nobody_gives_way_for_a_draft(self):
        """A draft gets blocks that are free; neither streams nor their chunks make room for it."""
        scheduler, allocator, sequence = self.running(blocks=2, new=5, prompt=3)
        other = generate(2, 3, new=1)
        scheduler.add(other)
        sequence.draft = [7, 7, 7]
        plan = scheduler.plan()
        assert {span.sequence.number: span.count for span in plan.spans} == {1: 4} or allocator.free == 0
        assert plan.tokens <= 8

    def test_forced_ids_want_their_logits(self):
        """Ids that were forced are computed in one go, and each is recorded as it comes."""
        scheduler, _, sequence = self.running()
        sequence.tokens += [7, 8]
        sequence.forced_count = 2
        plan = scheduler.plan()
        assert [(span.start, list(span.logits)) for span in plan.spans] == [(3, [3, 4, 5])]
        scheduler.commit(plan, [[7, 8, 4]])
        assert (sequence.tokens[4:], sequence.forced_count, sequence.computed) == ([7, 8, 4], 0, 6)

    def test_forced_ids_at_the_end(self):
        """Where forced ids fill the stream up, nothing is drawn behind them, and it ends with the last of them."""
        scheduler, allocator, sequence = self.running(new=3)
        sequence.tokens += [7, 8]
        sequence.forced_count = 2
        plan = scheduler.plan()
        assert [list(span.logits) for span in plan.spans] == [[3, 4]]
        assert scheduler.commit(plan, [[7, 8]]) == ["length"]
        assert allocator.free == allocator.total


def test_prompts_leave_running_streams_their_pace():
    """Beside running streams prompts get a share a step for each of them, at least a chunk; alone they get it all."""
    scheduler, _ = make(max_streams=12, max_batch_tokens=100, prompt_share=2)
    scheduler.add(generate(1, 30, new=1))
    assert step(scheduler)[0] == {1: (0, 30)}
    for number in range(2, 12):
        scheduler.add(generate(number, 1, new=50))
    step(scheduler)
    scheduler.add(generate(20, 90))
    spans, _ = step(scheduler)
    assert spans[20] == (0, 16)
    assert len(spans) == 11


@pytest.mark.parametrize(("waiting", "places", "tokens"), [(1, 12, 8), (3, 12, 24), (9, 12, 72), (9, 2, 16), (9, 0, 0)])
def test_a_crowd_of_prompts_is_not_served_chunk_by_chunk(waiting, places, tokens):
    """Beside one stream each prompt that has a place adds a chunk to a step; who came first gets them all."""
    scheduler, _ = make(max_streams=1 + places, max_batch_tokens=200, prompt_share=1)
    scheduler.add(generate(0, 1, new=50))
    step(scheduler)
    for number in range(1, waiting + 1):
        scheduler.add(generate(number, 90))
    spans, _ = step(scheduler)
    assert spans == {0: (1, 1)} | ({1: (0, tokens)} if tokens else {})


def test_prompts_keep_up_with_forced_ids():
    """A step that is longer for ids that were forced has a longer share of prompts, too; forced ids take none of it."""
    scheduler, _ = make(max_streams=12, max_batch_tokens=200, prompt_share=1)
    running = [generate(number, 1, new=50) for number in range(4)]
    for sequence in running:
        scheduler.add(sequence)
    step(scheduler)
    for sequence in running:
        sequence.tokens += [7] * 6
    scheduler.add(generate(20, 90))
    spans, _ = step(scheduler)
    assert [spans[number][1] for number in range(4)] == [7] * 4
    assert spans[20] == (0, 24)
