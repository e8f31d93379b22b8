"""A request with `prefill_only` computes keys and values of its prompt and samples nothing."""

from __future__ import annotations

import pytest

from lmtool.core.types import Constraint, GenerateRequest, SamplingParams, ScoreRequest, Usage
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.plan import Sequence, Span
from tests.inference.engine.conftest import bits
from tests.inference.engine.scheduling import cached_blocks, make
from tests.inference.engine.scheduling import step as run_step

SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


@pytest.fixture
def engine(checkpoint):
    """An engine with an empty prefix cache."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    yield engine
    engine.close()


class TestPrefill:
    """Over a real small model."""

    @pytest.mark.parametrize("length", [1, 15, 16, 17, 40, 64, 255])
    async def test_ends_without_a_token(self, engine, run, random_ids, length):
        """One output: `prefill`, and a usage of the prompt's tokens alone."""
        (output,) = (await run(engine, GenerateRequest(1, random_ids(length, seed=length), prefill_only=True)))[1]
        assert (output.token, output.finish_reason, output.error) == (None, "prefill", None)
        assert output.usage == Usage(length, 0, 0)

    @pytest.mark.parametrize("compiled", [True, False])
    async def test_later_prompts_begin_with_it(self, engine_of, run, random_ids, compiled):
        """The prefix cache serves its whole chunks to a prompt that goes on, whose bits are those without a prefill."""
        beginning = random_ids(50, seed=77 + compiled)
        request = GenerateRequest("x", beginning + random_ids(9, seed=3), SHORT)
        plain = engine_of("llama", compiled=compiled, prefix_cache=False)
        expected = (await run(plain, request))["x"]
        engine = engine_of("llama", compiled=compiled)
        await run(engine, GenerateRequest(1, beginning, prefill_only=True))
        outputs = (await run(engine, request))["x"]
        assert bits(outputs) == bits(expected)
        assert outputs[-1].usage == Usage(59, 5, 48)

    async def test_the_prompt_itself(self, engine, run, random_ids):
        """What its last position predicts is not stored: a prompt of whole chunks computes its last one again."""
        prompt = random_ids(64, seed=5)
        await run(engine, GenerateRequest(1, prompt, prefill_only=True))
        again = (await run(engine, GenerateRequest(2, prompt, prefill_only=True)))[2]
        assert again[0].usage == Usage(64, 0, 48)
        assert (await run(engine, GenerateRequest(3, prompt, SHORT)))[3][-1].usage == Usage(64, 5, 48)

    async def test_the_end_of_a_prompt_is_stored_too(self, engine, run, random_ids):
        """A last chunk that is whole serves a longer prompt."""
        prompt = random_ids(64, seed=6)
        await run(engine, GenerateRequest(1, prompt, prefill_only=True))
        outputs = (await run(engine, GenerateRequest(2, (*prompt, 7, 8), SHORT)))[2]
        assert outputs[-1].usage.cached_tokens == 64

    async def test_nothing_else_of_the_request_counts(self, engine, run):
        """Neither sampling, `max_tokens` 0 included, nor a constraint, which is not even compiled."""
        sampling = SamplingParams(max_tokens=0, logit_bias={3: 9.0})
        request = GenerateRequest(1, (3, 4), sampling, constraint=Constraint("regex", "a"), prefill_only=True)
        (output,) = (await run(engine, request))[1]
        assert output.finish_reason == "prefill"

    async def test_an_empty_prompt(self, engine, run):
        """Begins with the bos id, as any other."""
        (output,) = (await run(engine, GenerateRequest(1, (), prefill_only=True)))[1]
        assert output.usage == Usage(1, 0, 0)

    async def test_bad_prompts_are_refused(self, engine, run):
        """As for any other request."""
        requests = [GenerateRequest(n, p, prefill_only=True) for n, p in enumerate([(999,), (3,) * 256])]
        outputs = await run(engine, *requests)
        assert [outputs[n][0].error_code for n in range(2)] == ["unknown_token", "context_overflow"]

    @pytest.mark.parametrize("ahead", [False, True])
    async def test_beside_others(self, engine_of, run, random_ids, ahead):
        """Streams that run at the same time get the same bits as alone."""
        engine = engine_of("llama", speculation=not ahead)
        request, score = GenerateRequest("g", random_ids(20, seed=8), SHORT), ScoreRequest("s", (3,), (4, 5, 6))
        alone = {**await run(engine, request), **await run(engine, score)}
        prefill = GenerateRequest("p", random_ids(100, seed=9), prefill_only=True)
        together = await run(engine, prefill, request, score)
        assert together["p"][-1].finish_reason == "prefill"
        assert all(bits(together[name]) == bits(alone[name]) for name in "gs")


class TestSchedule:
    """What the scheduler plans for it."""

    @staticmethod
    def prefill(length, number=1):
        return Sequence(number, [1] * length, length, length + 1, prefill_only=True)

    def test_no_logits(self):
        """No position needs any, and the end is certain before the outcome."""
        sequence = self.prefill(11)
        assert not Span(sequence, 0, 11).logits
        assert not Span(sequence, 0, 11).yields_one_id
        assert (Span(sequence, 0, 8).ends_sequence, Span(sequence, 0, 11).ends_sequence) == (False, True)

    def test_blocks_are_freed_but_for_whole_chunks(self):
        """At its end it holds nothing; chunks stay for others until their blocks are needed."""
        from lmtool.inference.engine.prefix_cache import PrefixCache

        cache = PrefixCache(8)
        scheduler, allocator = make(100, cache=cache)
        scheduler.add(self.prefill(19))
        ended = {}
        while scheduler.running or scheduler.waiting:
            ended |= run_step(scheduler)[1]
        assert ended == {1: "prefill"}
        assert cached_blocks(cache) == cache.idle_blocks == 4
        assert allocator.free == allocator.total - 4

    def test_runs_behind_all_others(self):
        """Whatever came first: another request takes its place, its room in a step and its blocks, however long."""
        scheduler, _ = make(8, max_streams=1, max_batch_tokens=8)
        urgent = self.prefill(24, number=1)
        urgent.priority = -9
        scheduler.add(urgent)
        assert run_step(scheduler)[0] == {1: (0, 8)}
        for number in range(2, 20):
            scheduler.add(Sequence(number, [1] * 12, 12, 13, stop_ids=frozenset({0})))
        done = [numbers for _ in range(60) if (numbers := list(run_step(scheduler)[1]))]
        assert done == [[number] for number in (*range(2, 20), 1)]

    def test_beside_others_one_chunk_a_step(self):
        """What runs keeps its pace."""
        scheduler, _ = make(max_batch_tokens=100)
        scheduler.add(Sequence(1, [1] * 4, 4, 20, stop_ids=frozenset({0})))
        run_step(scheduler)
        for number in (2, 3):
            scheduler.add(self.prefill(16, number=number))
        assert [run_step(scheduler)[0] for _ in range(3)] == [
            {1: (4, 1), 2: (0, 8)},
            {1: (5, 1), 2: (8, 8)},
            {1: (6, 1), 3: (0, 8)},
        ]

    def test_costs_its_client_no_turn(self):
        """A client's prefills do not push its requests behind those of others."""
        scheduler, _ = make(max_streams=1)
        for number in range(1, 5):
            scheduler.add(self.prefill(3, number=number))
        scheduler.add(Sequence(5, [1] * 3, 3, 4, client="other"))
        scheduler.add(Sequence(6, [1] * 3, 3, 4))
        scheduler.add(Sequence(7, [1] * 3, 3, 4, client="other"))
        assert [list(run_step(scheduler)[0]) for _ in range(3)] == [[5], [6], [7]]

    def test_one_that_was_preempted_goes_on(self):
        """A prefill that had to give its blocks away is computed again, and ends once."""
        scheduler, _ = make(6, max_batch_tokens=8)
        running = Sequence(1, [1] * 4, 4, 20, stop_ids=frozenset({0}))
        scheduler.add(running)
        run_step(scheduler)
        scheduler.add(self.prefill(16, number=2))
        ended = {}
        for _ in range(40):
            ended |= run_step(scheduler)[1]
        assert ended == {1: "length", 2: "prefill"}
