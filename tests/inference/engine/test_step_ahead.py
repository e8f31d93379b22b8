"""Steps begun before the one before is read: every stream gets what it gets without, and nothing is read too soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from random import Random
from types import SimpleNamespace

import pytest
import torch

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.sampler import start_sampling
from lmtool.inference.engine.sampling_result import SamplingResult
from lmtool.inference.engine.transformers_loader import load_transformers
from tests.inference.engine.guiding import StepCompiler, StepGuide, steps

CPU = torch.device("cpu")
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class AheadRunner(ModelRunner):
    """A `ModelRunner` that takes ids from tensors, as a GPU's does, and notes the steps that it began."""

    begun: list

    @property
    def max_ahead_rows(self):
        return 8

    def run(self, plan):
        self.begun.append("step")
        return ModelRunner.run(self, plan)

    def run_ahead(self, plan, ids):
        """The ids are read here: a CPU has them. They stand in for a draft while the step is computed."""
        self.begun.append("ahead")
        for span, token in zip(plan.spans, ids.tolist(), strict=True):
            span.sequence.draft = [token]
        try:
            return ModelRunner.run(self, plan)
        finally:
            for span in plan.spans:
                span.sequence.draft = []


class SamplingRunner(AheadRunner):
    """One whose passes sample, too, as CUDA graphs do, where that needs no id before and lists no alternatives."""

    samples_ahead = True

    def sample_ahead(self, plan, ids, rows):
        """The kernels' results: token, bits of its logprob, the likeliest id, bits of its logprob."""
        if any(row.penalises or (row.top_logprobs or 0) > 1 for row in rows):
            return None
        rows, before = [replace(row, top_logprobs=1) for row in rows], len(self.begun)
        found = start_sampling(self.run_ahead(plan, ids), rows).read()
        self.begun[before:] = ["sampled"]
        results = torch.zeros(len(rows), 4, dtype=torch.int32)
        results.view(torch.float32)[:, 1] = torch.nan
        for result, one in zip(results, found, strict=True):
            if one is not None:
                result[0], result[2] = one.token, one.top_logprobs[0][0]
                result.view(torch.float32)[1::2] = torch.tensor([one.logprob, one.top_logprobs[0][1]])
        counts = [None] * len(rows)
        return SimpleNamespace(
            members=list(range(len(rows))), tokens=results[:, 0].long(), results=results, listed=[], logprobs=None,
            counts=counts,
        )  # fmt: skip


class Driven:
    """An engine without a thread: a test says when it takes what it was told, and steps."""

    def __init__(self, loaded, *, ahead, blocks=60, streams=6, kind=AheadRunner, **settings):
        own = {field.name: getattr(loaded.runner, field.name) for field in fields(loaded.runner)}
        self.begun = []
        limits = Limits(streams, max_batch_tokens=48, chunk_tokens=16, block_tokens=16, max_scored_rows=64)
        info = replace(loaded.info, context_length=min(loaded.info.context_length, blocks * 16 + 1))
        config = EngineConfig(**{"step_ahead": ahead, "speculation": False, **settings})
        self.engine = Engine(kind(**own, begun=self.begun), limits, blocks, info, config)
        self.engine.set_guide_compiler(StepCompiler(eos=2))
        self.outputs, self.handles = {}, {}

    def submit(self, request):
        """Start a stream; its outputs are kept."""
        self.outputs[request.stream_id] = []
        self.handles[request.stream_id] = self.engine.submit(request, self._sink)

    def _sink(self, batch):
        for output in batch:
            self.outputs[output.stream_id].append(output)

    async def step(self):
        """What the engine's thread does once, and the deliveries of it."""
        with torch.inference_mode():
            self.engine._thread._run_commands(wait=False)
            busy = self.engine._step()
            self.engine._flush()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return busy

    async def finish(self):
        """Step until nothing is left to do."""
        for _ in range(2000):
            if not await self.step() and not self.engine._thread.interrupted:
                break
        assert not self.engine._streams
        scheduler, prefixes = self.engine._scheduler, self.engine._scheduler._blocks.cache
        kept = 0 if prefixes is None else prefixes.idle_blocks
        assert (scheduler.running, scheduler.waiting) == (0, 0)
        assert scheduler._blocks.allocator.free + kept == scheduler._blocks.allocator.total
        assert self.engine._next_step is None


@pytest.fixture(scope="module")
def loaded(checkpoint):
    """A small Llama whose rows do not depend on their neighbours."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        name = str(checkpoint("llama"))
        return load_transformers(name, EngineConfig(device="cpu", threads=1, max_streams=8), CPU, lambda progress: None)


def plain(outputs):
    """Outputs without what may depend on when others came: how much was taken from the prefix cache."""
    return [o if o.usage is None else replace(o, usage=replace(o.usage, cached_tokens=0)) for o in outputs]


def draw_sampling(draw):
    """Parameters of a stream."""
    kind = draw.choice(["greedy", "greedy", "seeded", "seeded", "bias", "cut", "nucleus", "penalty", "late"])
    extra = {
        "greedy": {},
        "seeded": {"temperature": 0.9, "seed": draw.randrange(99)},
        "bias": {"logit_bias": {draw.randrange(101): 3.0, 2: 2.0}, "logprobs_mode": draw.choice(["raw", "biased"])},
        "cut": {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "seed": 5, "logprobs_mode": "processed"},
        "nucleus": {"temperature": 1.0, "top_p": 0.8, "seed": 6},
        "penalty": {"repetition_penalty": 1.3, "presence_penalty": 0.4},
        "late": {"min_tokens": 4, "logit_bias": {2: 4.0}},
    }[kind]
    return SamplingParams(
        max_tokens=draw.randrange(1, 24),
        top_logprobs=draw.choice([0, 0, 3, 30]),
        stop_token_ids=tuple(draw.sample(range(3, 101), draw.choice([0, 12]))),
        ignore_eos=draw.random() < 0.5,
        **extra,
    )


def draw_request(draw, number):
    """Any kind of stream."""
    prompt = (draw.randrange(3, 5),) * draw.choice([1, 5, 15, 16, 17, 40]) + (draw.randrange(3, 20),)
    if draw.random() < 0.15:
        return ScoreRequest(number, prompt, tuple(draw.randrange(3, 101) for _ in range(draw.randrange(1, 30))))
    if draw.random() < 0.2:
        text = draw.choice(["7,8;9,40,41;5;6,7", "7,8;9;40;41;5,6;6", "5;6;7,8;9,10;11,12"])
        return GenerateRequest(number, prompt, draw_sampling(draw), constraint=steps(text))
    return GenerateRequest(number, prompt, draw_sampling(draw))


async def play(engine, script):
    """Steps, and between them whatever the script says; then to the end, with all pauses over."""
    told = []
    for happening, argument in script:
        if happening == "submit":
            engine.submit(argument)
            told.append(argument.stream_id)
        elif happening == "step":
            for _ in range(argument):
                await engine.step()
        elif told:
            getattr(engine.handles[told[argument % len(told)]], happening)()
    for number in told:
        engine.handles[number].resume()
    await engine.finish()
    return {number: plain(outputs) for number, outputs in engine.outputs.items()}


def only_ones(guide):
    """The ids of the steps to come that leave no choice."""
    return [next(iter(step)) for step in takewhile(lambda step: len(step) == 1, guide.steps[guide.at :])]


def draw_script(draw):
    """Newcomers, cancels and pauses between steps."""
    script, happenings = [], ["submit"] * 4 + ["step"] * 8 + ["cancel", "pause", "resume"]
    for number in range(draw.randrange(3, 45)):
        happening = draw.choice(happenings)
        value = {"submit": lambda: draw_request(draw, number), "step": lambda: draw.randrange(1, 6)}  # noqa: B023
        script.append((happening, value.get(happening, lambda: draw.randrange(99))()))
    return script


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("blocks", [4, 9, 60])
def test_every_stream_gets_the_same(loaded, blocks, prefix_cache, monkeypatch):
    """Ids, logprobs, alternatives, endings and their order are those of the plain loop, whatever happens between steps.

    A stream that is cancelled got a beginning of what it would have got, which may be a step longer or shorter.
    """
    monkeypatch.setattr(StepGuide, "forced", only_ones)
    begun = Counter()
    for seed in range(40):
        script = draw_script(Random(seed))
        common = {"blocks": blocks, "prefix_cache": prefix_cache, "kind": (AheadRunner, SamplingRunner)[seed % 2]}
        engines = [Driven(loaded, ahead=ahead, **common) for ahead in (True, False)]
        ours, theirs = (asyncio.run(play(engine, script)) for engine in engines)
        begun.update(engines[0].begun)
        assert list(ours) == list(theirs)
        for number in ours:
            agree(ours[number], theirs[number])
        assert set(engines[1].begun) == {"step"}
    assert begun["ahead"] + begun["sampled"] > begun["step"] / 3
    assert begun["sampled"] > begun["ahead"] / 20


def agree(ours, theirs):
    """Equal, or for a cancelled stream equal as far as both go, and counted right."""
    endings = {ours[-1].finish_reason, theirs[-1].finish_reason}
    if "cancelled" not in endings:
        assert ours == theirs
        return
    least = min(len(ours), len(theirs)) - 1
    assert ours[:least] == theirs[:least]
    for outputs in (ours, theirs):
        assert outputs[-1].usage.completion_tokens == sum(output.token is not None for output in outputs)


@pytest.fixture
def driven(loaded):
    """An engine that goes ahead where it can."""
    return lambda **settings: Driven(loaded, **{"ahead": True, **settings})


@pytest.fixture
def order(monkeypatch, driven):
    """What happens in which order: steps that are begun, and outcomes that are read."""

    def make(**settings):
        engine = driven(**settings)
        read = SamplingResult.read

        def noting(self):
            engine.begun.append("read")
            return read(self)

        monkeypatch.setattr(SamplingResult, "read", noting)
        return engine

    return make


def request(number, **sampling):
    """A stream of four ids."""
    return GenerateRequest(number, (5, 6, 7 + number), replace(LONG, **{"max_tokens": 4, **sampling}))


class TestOrder:
    """What is begun before what is read."""

    async def test_each_step_is_begun_before_the_last_one_is_read(self, order):
        """From the first step on, up to the last id, which no step follows."""
        engine = order()
        engine.submit(request(1))
        engine.submit(request(2, temperature=1.0, top_logprobs=3))
        await engine.finish()
        assert engine.begun == ["step", "ahead", "read", "ahead", "read", "ahead", "read", "read"]

    async def test_not_when_it_is_turned_off(self, order):
        """Then each step is read before the next is begun."""
        engine = order(ahead=False)
        engine.submit(request(1))
        await engine.finish()
        assert engine.begun == ["step", "read"] * 4

    async def test_not_beside_guessing(self, order):
        """A stream that is guessed ahead needs its ids."""
        engine = order(speculation=True)
        engine.submit(request(1))
        await engine.finish()
        assert "ahead" not in engine.begun

    async def test_rows_that_need_the_last_id(self, order):
        """Only the pass goes ahead: penalties, and masks of a constraint, know the id before the next one is drawn."""
        engine = order()
        engine.submit(request(1, repetition_penalty=1.3, presence_penalty=0.5))
        engine.submit(GenerateRequest(2, (5, 6), LONG, constraint=steps("7,8;9,40;5")))
        await engine.finish()
        assert engine.begun == ["step"] + ["ahead", "read"] * 4
        assert (len(engine.outputs[1]), engine.outputs[2][-1].finish_reason) == (4, "stop")

    async def test_rows_that_are_known(self, order):
        """Beside no others they are sampled in the pass that goes ahead, and the one that ends first is left out."""
        engine = order(kind=SamplingRunner)
        engine.submit(request(1, max_tokens=3))
        engine.submit(request(2, temperature=1.0, top_p=0.7, top_logprobs=0))
        await engine.finish()
        assert engine.begun == ["step", "sampled", "read", "sampled", "read", "sampled", "read", "read"]
        assert [len(engine.outputs[number]) for number in (1, 2)] == [3, 4]

    async def test_a_newcomer_is_not_kept_waiting(self, order):
        """Once it is there, nothing is begun without it, and afterwards it goes ahead with the others."""
        engine = order()
        engine.submit(request(1, max_tokens=9))
        await engine.step()
        assert engine.begun == ["step", "ahead", "read"]
        engine.submit(request(2))
        await engine.step()
        await engine.step()
        assert engine.begun[3:] == ["read", "step", "ahead", "read"]
        assert len(engine.outputs[2]) == 1

    async def test_more_streams_than_can_go_ahead(self, order):
        """Steps larger than any recorded one are read first."""
        engine = order(streams=12)
        for number in range(9):
            engine.submit(request(number))
        await engine.finish()
        assert "ahead" not in engine.begun


class TestEndings:
    """Who ends while the next step is being computed gets nothing of it."""

    async def test_stop(self, order):
        """A stop id ends a stream one step late, and the neighbour goes on."""
        engine = order()
        engine.submit(request(1, logit_bias={9: 100.0}, stop_token_ids=(9,)))
        engine.submit(request(2))
        await engine.finish()
        assert [(o.token, o.finish_reason) for o in engine.outputs[1]] == [(9, "stop")]
        assert len(engine.outputs[2]) == 4
        assert engine.begun.count("ahead") == 3

    async def test_pause(self, order):
        """A stream that pauses gets nothing before it goes on, and then what was left aside."""
        engine = order()
        for number in (1, 2):
            engine.submit(request(number, max_tokens=6))
        await engine.step()
        engine.handles[1].pause()
        await engine.step()
        await engine.step()
        assert [len(engine.outputs[number]) for number in (1, 2)] == [1, 3]
        engine.handles[1].resume()
        await engine.finish()
        assert [len(engine.outputs[number]) for number in (1, 2)] == [6, 6]

    async def test_cancel(self, order):
        """A stream that is cancelled while a step of it is computed gets no more token."""
        engine = order()
        engine.submit(request(1, max_tokens=30))
        await engine.step()
        await engine.step()
        engine.handles[1].cancel()
        await engine.finish()
        assert [o.finish_reason for o in engine.outputs[1]] == [None, None, "cancelled"]
        assert engine.outputs[1][-1].usage.completion_tokens == 2

    async def test_numbers_that_are_none(self, loaded, driven, monkeypatch):
        """Logits that are not numbers end their stream, though an id was drawn from them for the next step."""
        broken = ModelRunner.run

        def run(self, plan):
            logits = broken(self, plan)
            for row, span in enumerate(plan.spans):
                if span.end == 5 and span.sequence.tokens[2] == 8:
                    logits[row] = torch.nan
            return logits

        monkeypatch.setattr(ModelRunner, "run", run)
        engine = driven()
        engine.submit(request(1))
        engine.submit(request(2))
        await engine.finish()
        assert [o.error_code for o in engine.outputs[1]] == [None, None, "server"]
        assert "not numbers" in engine.outputs[1][-1].error
        assert len(engine.outputs[2]) == 4
        assert engine.begun.count("ahead") == 3


class TestFailures:
    """Steps that fail while another one is on its way."""

    async def test_what_cannot_be_read(self, driven, monkeypatch, caplog):
        """A step whose outcome cannot be read ends its streams, and the step behind it; the engine lives on."""
        engine = driven()
        for number in (1, 2):
            engine.submit(request(number))
        await engine.step()
        with monkeypatch.context() as patched:
            patched.setattr(SamplingResult, "read", lambda self: 1 / 0)
            await engine.step()
        await engine.finish()
        assert ["ZeroDivisionError" in engine.outputs[number][-1].error for number in (1, 2)] == [True, True]
        engine.submit(request(3))
        await engine.finish()
        assert len(engine.outputs[3]) == 4

    async def test_no_memory_to_go_ahead(self, driven, monkeypatch):
        """Then the step is computed in its own time, and nobody notices."""

        def scarce(self, plan, ids):
            raise torch.OutOfMemoryError("no room")

        monkeypatch.setattr(AheadRunner, "run_ahead", scarce)
        engine = driven()
        engine.submit(request(1))
        await engine.finish()
        assert [o.error for o in engine.outputs[1]] == [None] * 4

    @pytest.mark.parametrize("call", ["close", "drain"])
    async def test_the_end(self, driven, call):
        """An engine that drains or closes leaves nothing on its way."""
        engine = driven()
        engine.submit(request(1, max_tokens=60 if call == "drain" else 200))
        engine.engine.start()
        async with asyncio.timeout(30):
            while len(engine.outputs[1]) < 5:
                await asyncio.sleep(0.001)
        if call == "drain":
            assert await engine.engine.drain(30) == 0
            assert len(engine.outputs[1]) == 60
        await asyncio.to_thread(engine.engine.close)
        await asyncio.sleep(0)
        assert engine.outputs[1][-1].last
        assert engine.engine._next_step is None
        assert engine.begun.count("ahead") > 3
