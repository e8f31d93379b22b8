"""Where the bits of a position do not depend on its step, prompts are cut anywhere and generated text is kept."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.engine.prefix_cache import PrefixCache
from lmtool.types import GenerateRequest, SamplingParams
from tests.engine.conftest import bits
from tests.engine.scheduling import CHUNK, generate, make, prompt_of, score, step
from tests.engine.test_random_schedules import RandomSchedulesWithPrefixes


class FreelyCut(RandomSchedulesWithPrefixes):
    """Random schedules with prompts cut anywhere, and later positions that take longer."""

    limits: ClassVar = {"free_cuts": True, "doubling_position": 16, "prompt_share": 1}


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
    assert (spans[20], spans[21]) == ((0, 9), (0, 2))


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
    scheduler, _ = make(cache=PrefixCache(CHUNK), free_cuts=True)
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
    sequence.lost = 28  # as when it gave way
    scheduler, _ = make(max_batch_tokens=100, free_cuts=True)
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
