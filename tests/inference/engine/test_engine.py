"""The running engine: streams begin, share steps, end, are cancelled, paused and drained."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from random import Random

import pytest
import torch

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine import engine_thread
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from tests.protocol.lmtp.harness import until

CONTEXT = 256
LONG = SamplingParams(max_tokens=10_000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


class Reader:
    """A sink that can wait for what it gets."""

    def __init__(self):
        self.calls = []
        self._news = asyncio.Condition()

    def __call__(self, outputs):
        """Take one step's outputs."""
        self.calls.append(list(outputs))
        self._task = asyncio.ensure_future(self._tell())

    async def _tell(self):
        async with self._news:
            self._news.notify_all()

    @property
    def outputs(self):
        """All outputs so far."""
        return [output for call in self.calls for output in call]

    async def until(self, condition):
        """Wait until `condition(self)` holds."""
        async with asyncio.timeout(30), self._news:
            await self._news.wait_for(lambda: condition(self))

    async def ended(self, count=1):
        """Wait for the end of `count` streams."""
        await self.until(lambda own: sum(output.last for output in own.outputs) == count)
        return self.outputs


@pytest.fixture
def engine(engine_of):
    """An engine over a small Llama."""
    return engine_of("llama")


@pytest.fixture
def own_engine(checkpoint):
    """An engine for one test alone, which may close or break it."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    yield engine
    engine.close()


class TestStreams:
    """GENERATE and SCORE, their tokens and endings."""

    async def test_never_before_submit_returned(self, engine):
        """Outputs come later than `submit`, refusals too."""
        reader = Reader()
        engine.submit(GenerateRequest(1, (), SHORT), reader)
        engine.submit(GenerateRequest(2, (-1,), SHORT), reader)
        assert reader.calls == []
        await reader.ended(2)

    async def test_what_it_holds(self, own_engine, monkeypatch):
        """Memory of keys and values by who has it; when a stream's turn came is known from then on."""
        before, reader, runner = own_engine.usage_now, Reader(), type(own_engine._runner)
        assert (before.running, before.kv_cache_used_bytes, before.prefix_cache_bytes) == (0, 0, 0)
        assert before.kv_cache_bytes > 0
        begins, goes_on, steps, run = threading.Event(), threading.Event(), [], runner.run

        def run_first(self, plan):
            steps.append(plan)
            assert len(steps) == 1 or goes_on.wait(30)
            return run(self, plan)

        monkeypatch.setattr(runner, "run", run_first)
        own_engine._thread.post(lambda: begins.wait(30))
        asked = time.perf_counter()
        handle = own_engine.submit(GenerateRequest(1, tuple(range(3, 53)), LONG), reader)
        assert handle.began_at() is None
        begins.set()
        await reader.until(lambda own: own.outputs)
        assert asked < handle.began_at() < time.perf_counter()
        now, block = own_engine.usage_now, 16 * 4 * 2 * 3 * 2 * 8  # positions, float32, K and V, layers, heads, size
        assert now.running == 1
        assert now.kv_cache_used_bytes >= 4 * block
        assert (now.kv_cache_used_bytes % block, now.prefix_cache_bytes) == (0, 3 * block)  # whole chunks
        handle.cancel()
        goes_on.set()
        await reader.ended()
        idle = own_engine.usage_now
        assert (idle.running, idle.kv_cache_used_bytes, idle.prefix_cache_bytes) == (0, 0, now.prefix_cache_bytes)

    async def test_usage_on_the_last_output(self, engine, run):
        """Exactly one last output, which counts tokens."""
        outputs = (await run(engine, GenerateRequest("a", (3, 4), SHORT)))["a"]
        assert [output.last for output in outputs] == [False, False, True]
        assert outputs[-1].finish_reason == "length"
        assert (outputs[-1].usage.prompt_tokens, outputs[-1].usage.completion_tokens) == (2, 3)

    async def test_connections_take_turns(self, checkpoint):
        """One stream at a time: a second connection's follows the first one's next, an urgent one goes before all."""
        engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1, max_streams=1))
        try:
            order = []
            readers = [Reader(), Reader()]

            def noting(reader):
                def sink(outputs):
                    order.extend(output.stream_id for output in outputs if output.last)
                    reader(outputs)

                return sink

            first, second = map(noting, readers)
            engine.submit(GenerateRequest("long", (3, 4), SamplingParams(max_tokens=150, ignore_eos=True)), first)
            for number in range(3):
                engine.submit(GenerateRequest(number, (3, 4), SHORT), first)
            engine.submit(GenerateRequest("other", (3, 4), SHORT), second)
            engine.submit(GenerateRequest("urgent", (3, 4), SHORT, priority=-1), second)
            engine.start()
            await readers[0].ended(4)
            await readers[1].ended(2)
            assert order in (["urgent", "long", "other", 0, 1, 2], ["long", "urgent", "other", 0, 1, 2])
        finally:
            engine.close()

    async def test_one_call_a_step(self, engine_of):
        """A sink is called once a step with the outputs of all its streams."""
        engine, reader = engine_of("llama", speculation=False), Reader()
        for number in range(5):
            engine.submit(GenerateRequest(number, (3, 4), replace(SHORT, max_tokens=100)), reader)
        await reader.ended(5)
        assert max(len(call) for call in reader.calls) == 5
        assert all(len({output.stream_id for output in call}) == len(call) for call in reader.calls)

    async def test_eos_is_sent_once(self, engine, run):
        """The eos token is sent as a token, with `stop`; with `ignore_eos` the stream goes on."""
        force = {2: 100.0}
        stop, on = SamplingParams(max_tokens=4, logit_bias=force), SamplingParams(4, logit_bias=force, ignore_eos=True)
        outputs = await run(engine, GenerateRequest(1, (3,), stop), GenerateRequest(2, (3,), on))
        assert [(output.token, output.finish_reason) for output in outputs[1]] == [(2, "stop")]
        assert [output.token for output in outputs[2]] == [2, 2, 2, 2]
        assert outputs[2][-1].finish_reason == "length"

    async def test_stop_token_ids(self, engine, run):
        """A stop id ends the stream like eos does."""
        sampling = SamplingParams(max_tokens=9, logit_bias={7: 100.0}, stop_token_ids=(7,))
        outputs = (await run(engine, GenerateRequest(1, (3,), sampling)))[1]
        assert [(output.token, output.finish_reason) for output in outputs] == [(7, "stop")]

    async def test_min_tokens(self, engine, run):
        """No eos or stop id before `min_tokens` tokens."""
        sampling = SamplingParams(max_tokens=9, logit_bias={2: 100.0, 7: 99.0}, stop_token_ids=(7,), min_tokens=3)
        outputs = (await run(engine, GenerateRequest(1, (3,), sampling)))[1]
        assert len(outputs) == 4
        assert not {2, 7} & {output.token for output in outputs[:3]}
        assert (outputs[3].token, outputs[3].finish_reason) == (2, "stop")

    async def test_max_tokens_0(self, engine, run):
        """Ends with `length` and no token."""
        (output,) = (await run(engine, GenerateRequest(1, (3,), SamplingParams(max_tokens=0))))[1]
        assert (output.token, output.finish_reason) == (None, "length")

    async def test_empty_prompt(self, engine, run):
        """GENERATE starts from the model's bos id."""
        outputs = await run(engine, GenerateRequest(1, (), SHORT), GenerateRequest(2, (1,), SHORT))
        assert [output.token for output in outputs[1]] == [output.token for output in outputs[2]]

    async def test_end_of_the_context(self, engine, run):
        """A stream whose `max_tokens` go beyond the context ends with `length` where the context does."""
        outputs = (await run(engine, GenerateRequest(1, (3,) * 250, LONG)))[1]
        assert len(outputs) == CONTEXT - 250
        assert outputs[-1].finish_reason == "length"

    async def test_parameters_do_not_mix(self, engine, run):
        """Streams with different parameters, lengths and kinds run together, each with its own."""
        requests = [
            GenerateRequest(0, (3, 4), replace(SHORT, top_logprobs=0)),
            GenerateRequest(1, (3, 4), replace(SHORT, max_tokens=7, top_logprobs=4, temperature=1.0)),
            GenerateRequest(2, (3, 4), replace(SHORT, logit_bias={9: 100.0})),
            ScoreRequest(3, (3, 4), (5, 6)),
        ]
        outputs = await run(engine, *requests)
        assert [len(outputs[number]) for number in range(4)] == [3, 7, 3, 2]
        assert {len(output.top_logprobs) for output in outputs[0]} == {1}
        assert {len(output.top_logprobs) for output in outputs[1]} <= {4, 5}
        assert {(output.token, output.logprob) for output in outputs[2]} == {(9, 0.0)}
        assert {output.top_logprobs for output in outputs[3]} == {None}


class TestScore:
    """SCORE gives one output a scored id."""

    async def test_echoes_in_order(self, engine, run):
        """Each scored id once, in order, the last with `stop`."""
        outputs = (await run(engine, ScoreRequest(1, (3,), (4, 5, 6))))[1]
        assert [output.token for output in outputs] == [4, 5, 6]
        assert [output.finish_reason for output in outputs] == [None, None, "stop"]
        assert outputs[-1].usage.completion_tokens == 3

    async def test_same_numbers_as_generating(self, engine, run):
        """Generating a text and scoring it give the same logprobs and alternatives."""
        generated = (await run(engine, GenerateRequest(1, (3, 4), replace(LONG, max_tokens=30, top_logprobs=3))))[1]
        ids = tuple(output.token for output in generated)
        scored = (await run(engine, ScoreRequest(1, (3, 4), ids, top_logprobs=3)))[1]
        assert [o.logprob for o in scored] == pytest.approx([o.logprob for o in generated], abs=1e-4)
        assert [[i for i, _ in o.top_logprobs] for o in scored] == [[i for i, _ in o.top_logprobs] for o in generated]

    async def test_empty_scored(self, engine, run):
        """Is answered, with `stop` and no token."""
        (output,) = (await run(engine, ScoreRequest(1, (3,), ())))[1]
        assert (output.token, output.finish_reason) == (None, "stop")

    @pytest.mark.parametrize("count", [1, 4])
    async def test_empty_prompt(self, engine, run, count):
        """The first value is 0.0, a placeholder; the others are conditioned on the ids before."""
        ids = (4, 5, 6, 7)[:count]
        outputs = (await run(engine, ScoreRequest(1, (), ids, top_logprobs=1)))[1]
        after = (await run(engine, ScoreRequest(1, ids[:1], ids[1:], top_logprobs=1)))[1] if count > 1 else []
        assert outputs[0].logprob == 0.0
        assert [output.logprob for output in outputs[1:]] == [output.logprob for output in after]
        assert outputs[-1].finish_reason == "stop"

    async def test_whole_context(self, engine, run):
        """A text as long as the context can be scored."""
        outputs = (await run(engine, ScoreRequest(1, (3,) * 6, (4,) * 250)))[1]
        assert len(outputs) == 250


class TestRefusals:
    """A bad request ends its own stream with an error and no other."""

    @pytest.mark.parametrize(
        ("request_", "code", "words"),
        [
            (GenerateRequest(1, (3, 101)), "unknown_token", "token id 101 in prompt"),
            (GenerateRequest(1, (3,) * 256), "context_overflow", "too long: 256 tokens > 255 maximum"),
            (GenerateRequest(1, "text"), "invalid_request", "token ids"),
            (ScoreRequest(1, (3,), (999,)), "unknown_token", "999 in scored"),
            (ScoreRequest(1, (3,) * 200, (4,) * 57), "context_overflow", "257 tokens > 256 maximum"),
            (GenerateRequest(1, (3,), SamplingParams(logit_bias={101: 1.0})), "unknown_token", "logit_bias"),
        ],
    )
    async def test_own_stream_only(self, engine, run, request_, code, words):
        """The neighbour gets all its tokens."""
        outputs = await run(engine, GenerateRequest("fine", (3, 4), SHORT), request_)
        (refused,) = outputs[1]
        assert refused.error_code == code
        assert words in refused.error
        assert len(outputs["fine"]) == 3

    async def test_logits_that_are_not_numbers(self, own_engine, run):
        """NaN in one row ends that stream; the engine and its other streams live on."""
        with torch.inference_mode():
            own_engine._runner.forward._embedding[50] = torch.nan
        outputs = await run(own_engine, GenerateRequest("fine", (3, 4), SHORT), GenerateRequest("bad", (50, 3), SHORT))
        assert "not numbers" in outputs["bad"][-1].error
        assert len(outputs["fine"]) == 3
        again = await run(own_engine, *(GenerateRequest(number, (3, 4), SHORT) for number in range(4)))
        assert [output.token for output in again[3]] == [output.token for output in outputs["fine"]]

    async def test_a_step_that_fails(self, own_engine, run, caplog, monkeypatch):
        """Ends the streams of that step with an error; the engine lives on, its memory free."""
        with monkeypatch.context() as patched:
            patched.setattr(type(own_engine._runner.forward), "logits", _explode)
            outputs = await run(own_engine, GenerateRequest(1, (3, 4), SHORT), ScoreRequest(2, (3,), (4,)))
        assert outputs[1][-1].error_code == "out_of_memory"
        assert "out of memory" in outputs[2][-1].error
        outputs = await run(own_engine, GenerateRequest(1, (3, 4), SHORT))
        assert len(outputs[1]) == 3
        info = await own_engine.info()
        assert (info.running, info.waiting) == (0, 0)

    async def test_a_thread_that_fails(self, own_engine, run, caplog, monkeypatch):
        """A mistake outside a step ends every stream, those that come later too: nobody waits for ever."""
        monkeypatch.setattr(own_engine._scheduler, "plan", lambda: 1 / 0)
        outputs = await run(own_engine, GenerateRequest(1, (3, 4), SHORT))
        assert "ZeroDivisionError" in outputs[1][-1].error
        outputs = await run(own_engine, GenerateRequest(2, (3, 4), SHORT))
        assert "stopped" in outputs[2][-1].error


def _explode(forward, batch, attention):
    raise torch.OutOfMemoryError("no room")


class TestCancelAndPause:
    """What a reader tells the engine takes effect within one step."""

    async def test_cancel(self, engine):
        """The last output has `cancelled`, and nothing comes after it."""
        reader = Reader()
        handle = engine.submit(GenerateRequest(1, (3,), LONG), reader)
        await reader.until(lambda own: len(own.outputs) >= 3)
        handle.cancel()
        outputs = await reader.ended()
        assert outputs[-1].finish_reason == "cancelled"
        assert outputs[-1].usage.completion_tokens == len(outputs) - 1
        handle.cancel()
        handle.resume()
        assert len(await reader.ended()) == len(outputs)
        assert (await engine.info()).running == 0

    async def test_cancel_before_the_first_step(self, engine):
        """A stream cancelled at once ends without a token."""
        reader = Reader()
        engine.submit(GenerateRequest(1, (3,) * 200, LONG), reader).cancel()
        outputs = await reader.ended()
        assert outputs[-1].finish_reason == "cancelled"

    async def test_pause_and_resume(self, engine, run):
        """A paused stream gives nothing, and loses nothing; a neighbour goes on."""
        sampling = replace(LONG, max_tokens=60)
        expected = (await run(engine, GenerateRequest(1, (3,), sampling)))[1]
        reader = Reader()
        handle = engine.submit(GenerateRequest(1, (3,), sampling), reader)
        await reader.until(lambda own: len(own.outputs) >= 2)
        handle.pause()
        await run(engine, GenerateRequest(2, (3,), SHORT))
        before = len(reader.outputs)
        await run(engine, GenerateRequest(2, (3,), replace(LONG, max_tokens=20)))
        assert len(reader.outputs) == before < 60
        handle.resume()
        assert await reader.ended() == expected

    async def test_leaving_the_iterator(self, engine):
        """Leaving `stream` early cancels."""
        async for _ in stream(engine, GenerateRequest(1, (3,), LONG)):
            break
        reader = Reader()
        engine.submit(GenerateRequest(2, (3,), SHORT), reader)
        await reader.ended()
        assert (await engine.info()).running == 0


def random_request(number, random):
    """A request of any kind, now and then with an id that does not exist."""
    top = 104 if random.random() < 0.05 else 101
    ids = tuple(random.randrange(3, top) for _ in range(random.randrange(90)))
    if number % 3 == 0:
        return ScoreRequest(number, ids[:9], ids[9:])
    sampling = SamplingParams(
        max_tokens=random.randrange(40),
        temperature=random.choice([0, 1]),
        top_p=random.choice([0.5, 1]),
        min_tokens=random.randrange(4),
        presence_penalty=random.choice([0, 1]),
        top_logprobs=random.randrange(7),
        logit_bias=random.choice([{}, {2: 5.0}]),
    )
    return GenerateRequest(number, ids, sampling)


class TestLife:
    """Idle, busy, draining, closed."""

    async def test_idle_costs_nothing(self, engine, run):
        """An engine without streams uses no CPU."""
        await run(engine, GenerateRequest(1, (3,), SHORT))
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.1

    async def test_memory_comes_back(self, checkpoint, run, monkeypatch):
        """While nothing runs, the memory of keys and values is the system's; streams then are what they were."""
        monkeypatch.setattr(engine_thread, "REST_SECONDS", 0.0)
        monkeypatch.setattr(engine_thread, "LONG_REST_SECONDS", 0.0)
        engine = load_engine(str(checkpoint("llama-packed")), EngineConfig(threads=1))
        try:
            before = await run(engine, GenerateRequest(1, tuple(range(3, 60)), SHORT))
            ((keys, values),) = engine._runner.cache._pools.values()
            await until(lambda: not keys[:, :, 1:5].any() and not values[:, :, 1:5].any())
            assert await run(engine, GenerateRequest(1, tuple(range(3, 60)), SHORT)) == before
        finally:
            engine.close()

    async def test_info_counts(self, engine_of):
        """Running and waiting streams are counted; the rest says what the model is."""
        engine = engine_of("llama", max_streams=1, speculation=False)
        reader = Reader()
        handles = [engine.submit(GenerateRequest(n, (3,), LONG), reader) for n in range(60)]
        await reader.until(lambda _: engine.info_now.waiting)
        info = await engine.info()
        assert info.running == 1
        assert info.waiting < 60
        assert (info.architecture, info.vocab_size, info.context_length) == ("LlamaForCausalLM", 101, CONTEXT)
        assert (info.eos_token_ids, info.bos_token_id, info.dtype, info.device) == ((2,), 1, "float32", "cpu")
        assert set(info.versions) == {"torch", "transformers"}
        for handle in handles:
            handle.cancel()
        await reader.ended(60)

    async def test_drain(self, own_engine):
        """Running streams end, new ones are refused."""
        reader, late = Reader(), Reader()
        own_engine.submit(GenerateRequest(1, (3,), SHORT), reader)
        draining = asyncio.ensure_future(own_engine.drain(20))
        await asyncio.sleep(0)
        own_engine.submit(GenerateRequest(2, (3,), SHORT), late)
        assert await draining == 0
        assert (await reader.ended())[-1].finish_reason == "length"
        assert (await late.ended())[0].error_code == "overloaded"

    async def test_drain_gives_up(self, own_engine):
        """After the time allowed it tells how many still run; closing ends them with an error."""
        reader = Reader()
        handle = own_engine.submit(GenerateRequest(1, (3,), LONG), reader)
        handle.pause()
        assert await own_engine.drain(0.05) == 1
        own_engine.close()
        assert "stopped" in (await reader.ended())[-1].error

    async def test_close_twice(self, own_engine):
        """Closing again is harmless, and there is nothing to drain."""
        own_engine.close()
        own_engine.close()
        assert await own_engine.drain(60) == 0
        reader = Reader()
        own_engine.submit(GenerateRequest(1, (3,), SHORT), reader)
        assert (await reader.ended())[0].error_code == "overloaded"

    def test_a_loop_that_is_gone(self, engine_of):
        """Streams of a closed event loop end; the engine serves others."""
        engine = engine_of("llama")

        async def leave():
            engine.submit(GenerateRequest(1, (3,), LONG), lambda outputs: None)

        asyncio.run(leave())

        async def come():
            reader = Reader()
            engine.submit(GenerateRequest(1, (3,) * 100, replace(LONG, max_tokens=40)), reader)
            await reader.ended()
            return await engine.info()

        assert asyncio.run(come()).running == 0

    async def test_everything_at_once(self, engine_of):
        """Streams of all kinds, cancelled, paused and refused at random, in little memory: each ends once, last."""
        engine = engine_of("llama", max_streams=12, max_batch_tokens=70, kv_cache_bytes=20 * 16 * 3 * 2 * 2 * 8 * 4)
        reader, random, paused, count = Reader(), Random(5), [], 80
        for number in range(count):
            handle = engine.submit(random_request(number, random), reader)
            if random.random() < 0.2:
                handle.pause()
                paused.append(handle)
            if random.random() < 0.2:
                asyncio.get_running_loop().call_later(random.random() / 4, handle.cancel)
            if random.random() < 0.1:
                await asyncio.sleep(0)
        for handle in paused:
            handle.resume()
        outputs = await reader.ended(count)
        for number in range(count):
            assert [output.last for output in outputs if output.stream_id == number].index(True) == (
                sum(output.stream_id == number for output in outputs) - 1
            )
        info = await engine.info()
        assert (info.running, info.waiting) == (0, 0)
        assert engine._scheduler._blocks.free == engine._scheduler._blocks.allocator.total

    async def test_many_streams(self, engine_of, run):
        """More streams than places: all end, each with its own tokens."""
        engine = engine_of("llama", max_streams=8)
        requests = [GenerateRequest(n, (3 + n % 90, 4), replace(SHORT, max_tokens=1 + n % 7)) for n in range(100)]
        outputs = await run(engine, *requests)
        assert [len(outputs[n]) for n in range(100)] == [1 + n % 7 for n in range(100)]
