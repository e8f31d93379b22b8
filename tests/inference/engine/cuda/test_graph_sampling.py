"""Decode steps that sample in their CUDA graph: the same ids and log-probabilities as by the kernels behind it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch

from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams
from lmtool.inference.engine import sampler
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.plan import Limits, Plan
from lmtool.inference.engine.sampling_row import Bias, Row, RowState, TokenCounts
from tests.inference.engine.cuda.conftest import CONTEXT, VOCABULARY
from tests.inference.engine.cuda.test_graphs import texts_of
from tests.inference.engine.guiding import StepCompiler, steps
from tests.inference.engine.test_step_ahead import Driven, agree, play

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|All-NaN slice) encountered:RuntimeWarning"),
]

KINDS = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9, "logprobs_mode": "processed"},
    {"temperature": 1.0, "top_k": 7, "min_p": 0.05},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3},
    {"temperature": 1.0, "frequency_penalty": 0.4, "top_p": 0.8, "logprobs_mode": "raw"},
    {"temperature": 0.9, "logit_bias": {7: 3.0, 2: 2.0}},
    {"repetition_penalty": 1.3, "min_tokens": 4, "logit_bias": {2: 4.0}, "ignore_eos": False},
]
PENALISED = SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Several splits, tiles and parts of few ids, as in test_sampling."""
    from lmtool.inference.engine.cuda.kernels import sampling

    for name, value in {"SPLIT": 64, "PART": 16, "TILE": 128}.items():
        monkeypatch.setattr(sampling, name, value)


@pytest.fixture
def by_kernels(monkeypatch, device):
    """All that is sampled behind a pass is sampled by kernels, on a CPU too."""
    monkeypatch.setattr("lmtool.inference.engine.sampler.kernels_work", lambda *_: True)
    by_kernel = sampler.prepare_gpu.__wrapped__(device, VOCABULARY, torch.float32)
    monkeypatch.setattr(sampler, "_gpu_sampler", lambda _: by_kernel)


@pytest.fixture
def sampled(monkeypatch):
    """How many rows were sampled in each step that was begun ahead; 0 for a step that was not."""
    from lmtool.inference.engine.cuda.runner import CudaRunner

    counts = []
    sample_ahead = CudaRunner.sample_ahead

    def noting(self, plan, ids, rows):
        part = sample_ahead(self, plan, ids, rows)
        counts.append(0 if part is None else len(rows))
        return part

    monkeypatch.setattr(CudaRunner, "sample_ahead", noting)
    return counts


def rows_of(plan, kinds):
    """A row for each text of a plan, with what its stream keeps."""
    return [
        Row(
            params, None, Bias.of(params.logit_bias), 1, seed, span.start + 1,
            state=RowState(span.sequence.tokens, span.sequence.prompt_length),
        )
        for seed, (span, params) in enumerate(zip(plan.spans, kinds, strict=True))
    ]  # fmt: skip


def read(part, rows):
    """What was sampled, on the host."""
    return sampler.sampled_part(part, rows).read()


def sample(graphs, plan, rows, size=None):
    """What a step samples in its graph; None where no graph does."""
    from lmtool.inference.engine.cuda.step_rows import lay_out

    size = size or graphs.sampling_size(rows)
    return None if size is None else graphs.run_and_sample(lay_out(plan), rows, size)


def behind(graphs, plan, rows):
    """What kernels sample of the same step behind its graph."""
    from lmtool.inference.engine.cuda.sampling import sample_rows
    from lmtool.inference.engine.cuda.step_rows import lay_out

    (part,) = sample_rows(graphs.run(lay_out(plan)), rows, list(range(len(rows))))
    return read(part, rows)


async def test_streams(engine_on, run, random_ids, by_kernels, sampled):
    """Streams of most kinds, which begin and end beside each other, get the same bits, most of them from the graphs."""
    requests = [
        GenerateRequest(
            number,
            random_ids(2 + 5 * number % 11, seed=number),
            SamplingParams(**{"max_tokens": 4 + 3 * number % 8, "seed": number, "ignore_eos": True, **kind}),
        )
        for number, kind in enumerate(KINDS)
    ]
    outputs = []
    for samples in (True, False):
        engine = engine_on("small", deterministic=True, prefix_cache=False, streams=3, step_ahead=True, samples=samples)
        outputs.append(await run(engine, *requests))
    assert outputs[0] == outputs[1]
    assert sum(sampled) > 10
    assert max(sampled) == 3


class OnGraphs(Driven):
    """An engine over graphs without a thread."""

    def __init__(self, runner):
        self.begun, self.outputs, self.handles = [], {}, {}
        limits = Limits(3, max_batch_tokens=48, chunk_tokens=16, block_tokens=16, max_scored_rows=64)
        info = ModelInfo("small", "", "transformers", VOCABULARY, context_length=CONTEXT, eos_token_ids=(2,))
        config = EngineConfig(step_ahead=True, speculation=False, prefix_cache=False)
        self.engine = Engine(runner, limits, 60, info, config)
        self.engine.set_guide_compiler(StepCompiler(eos=2))


def draw_script(dice):
    """Newcomers, cancels and pauses between steps; now and then a stream that no graph samples."""
    script = []
    for number in range(9):
        kind = dict(dice.choice(KINDS))
        guided = dice.random() < 0.15
        if not guided and dice.random() < 0.15:
            kind["top_logprobs"] = 3
        script.append(
            (
                "submit",
                GenerateRequest(
                    number,
                    tuple(dice.randrange(3, 90) for _ in range(dice.randrange(1, 5))),
                    SamplingParams(**{"max_tokens": dice.randrange(1, 9), "seed": number, "ignore_eos": True, **kind}),
                    constraint=steps("7,8;9,40,41") if guided else None,
                ),
            )
        )
        for happening in dice.sample(["pause", "resume", "cancel", "resume"], dice.randrange(3)):
            script += [("step", dice.randrange(1, 4)), (happening, dice.randrange(99))]
    return script


def play_both(runner_of, scripts):
    """What streams get of engines whose graphs sample must be what they get of those whose graphs do not."""
    runner, *_ = runner_of("small", deterministic=True)
    with torch.inference_mode():
        runners = [runner.prepared(3, CONTEXT, samples=samples) for samples in (True, False)]
    for script in scripts:
        ours, theirs = (asyncio.run(play(OnGraphs(own), script)) for own in runners)
        assert list(ours) == list(theirs)
        for number in ours:
            agree(ours[number], theirs[number])


def test_whatever_happens_between_steps(runner_of, by_kernels, sampled):
    """Streams that pause, go on, are cancelled or wait for a place while a step of theirs is sampled get the same."""
    play_both(runner_of, [draw_script(Random(seed)) for seed in range(3)])
    assert sum(sampled) > 30


def test_a_step_is_thrown_away(runner_of, by_kernels, sampled, monkeypatch):
    """What it had counted for penalties is taken back, once, and the stream goes on as if it had not been."""
    taken_back = Counter()
    follows = TokenCounts.follows

    def noting(self, tokens, position):
        taken_back[not follows(self, tokens, position)] += 1
        return follows(self, tokens, position)

    monkeypatch.setattr(TokenCounts, "follows", noting)
    params = replace(PENALISED, max_tokens=12, seed=5, ignore_eos=True)
    both = [("submit", GenerateRequest(number, (5, 6, 5), params)) for number in (1, 2)]
    pause = [("step", 4), ("pause", 0), ("step", 2), ("resume", 0)]
    play_both(runner_of, [[*both, *pause, *pause]])
    assert taken_back[True] >= 2
    assert max(sampled) == 2


class TestStep:
    """One step in a graph."""

    @pytest.fixture
    def graphs(self, runner_of):
        """Graphs of 1, 2 and 4 rows that sample, and the plan of a step of three texts."""
        runner, *_ = runner_of("small")
        with torch.inference_mode():
            graphs = runner.prepared(4, CONTEXT, samples=True).graphs
            yield graphs, texts_of(runner, 3)

    def test_equals_the_kernels_behind_it(self, graphs):
        """Ids and log-probabilities have the same bits, whichever parameters stand beside each other."""
        own, plan = graphs
        for first in range(0, len(KINDS) - 2, 3):
            kinds = [SamplingParams(**kind) for kind in KINDS[first : first + 3]]
            rows = rows_of(plan, kinds)
            ours = read(sample(own, plan, rows), rows)
            assert ours == behind(own, plan, rows_of(plan, kinds))

    @pytest.mark.parametrize(("kind", "sends"), [({}, 1), ({"temperature": 1.0, "top_p": 0.9}, 3)])
    def test_rows_that_stay(self, graphs, monkeypatch, kind, sends):
        """Of the rows of the step before, random numbers alone are sent; all after a step that sampled nothing."""
        from lmtool.inference.engine.cuda import sampling
        from lmtool.inference.engine.cuda.step_rows import lay_out

        own, plan = graphs
        sent = []
        overwrite = sampling.overwrite
        monkeypatch.setattr(sampling, "overwrite", lambda *both: (sent.append(1), overwrite(*both)))
        kinds, positions = [SamplingParams(), SamplingParams(**kind), SamplingParams()], (4, 5, 6)
        rows, ours = rows_of(plan, kinds), []
        for position in positions:
            for row in rows:
                row.position = position
            ours.append(read(sample(own, plan, rows), rows))
        assert len(sent) == sends
        own.run(lay_out(plan))
        assert read(sample(own, plan, rows), rows) == ours[-1]
        assert len(sent) == sends + 1
        theirs = [behind(own, plan, [replace(row, position=position) for row in rows]) for position in positions]
        assert ours == theirs

    def test_padding_samples_and_counts_nothing(self, graphs):
        """A stream that left is not counted on by steps of others, nor by those that sample nothing."""
        from lmtool.inference.engine.cuda.step_rows import lay_out

        own, plan = graphs
        rows = rows_of(plan, [PENALISED] * 3)
        sample(own, plan, rows)
        counts = [row.state.on_device.counts.counts for row in rows]
        before = [one.clone() for one in counts]
        assert [int((one > 1).sum()) for one in before] == [2, 2, 2]  # the id that is known, and the sampled one
        fewer = Plan(plan.spans[:1])
        largest = own.sizes[2]
        sample(own, fewer, rows_of(fewer, [SamplingParams()]), size=largest)
        own.run(lay_out(plan))
        assert all(torch.equal(*pair) for pair in zip(counts, before, strict=True))
        for again in (own.run, lambda _: own.replay(3)):
            sample(own, plan, rows)
            again(lay_out(plan))
            assert all(torch.equal(*pair) for pair in zip(counts, before, strict=True))

    def test_what_graphs_do_not_sample(self, graphs):
        """Rows with a mask, with processors, with listed alternatives, or that are scored go another way."""
        own, plan = graphs
        others = [
            Row(target=3),
            Row(allowed=torch.full((4,), -1, dtype=torch.int32)),
            Row(top_logprobs=2),
            Row(top_logprobs=0, logprob_ids=(4,)),
            Row(processors=object()),
            Row(PENALISED, position=4, state=RowState([3, 4, 5], 3)),
        ]
        assert [sample(own, Plan(plan.spans[:1]), [row]) for row in others] == [None] * 6

    def test_no_memory_for_a_cut(self, runner_of, monkeypatch):
        """Where candidates of top-p do not fit beside so many rows, these are sampled behind the graph."""
        from lmtool.inference.engine.cuda import sampling

        monkeypatch.setattr(sampling, "_SCRATCH", 2 * 12 * VOCABULARY)
        runner, *_ = runner_of("small")
        with torch.inference_mode():
            graphs = runner.prepared(4, CONTEXT, samples=True).graphs
            plan = texts_of(runner, 3)
            for count, fits in ((2, True), (3, False)):
                part = Plan(plan.spans[:count])
                cut = rows_of(part, [SamplingParams(temperature=1.0, top_p=0.5)] * count)
                assert (sample(graphs, part, cut) is not None) == fits
            rows = rows_of(plan, [SamplingParams(temperature=1.0)] * 3)
            ours = read(sample(graphs, plan, rows), rows)
            assert ours == behind(graphs, plan, rows)


class TestCapture:
    """Sampling that cannot be captured, or is wrong in the graph."""

    def test_that_fails(self, runner_of, monkeypatch, caplog):
        """It is left out, and the log says so; the graphs give the logits."""
        from lmtool.inference.engine.cuda.sampling import GraphSampling

        def fails(self, logits):
            raise RuntimeError("no such kernel")

        monkeypatch.setattr(GraphSampling, "enqueue", fails)
        self._without(runner_of, caplog, "CUDA graphs end with the logits", "no such kernel")

    def test_that_samples_other_ids(self, runner_of, monkeypatch, caplog):
        """What does not equal the kernels alone is not used."""
        from lmtool.inference.engine.cuda.sampling import GraphSampling

        enqueue = GraphSampling.enqueue
        monkeypatch.setattr(GraphSampling, "enqueue", lambda self, logits: enqueue(self, -logits))
        self._without(runner_of, caplog, "tokens are sampled behind CUDA graphs", "samples other ids")

    def test_its_records_stay(self, runner_of, monkeypatch):
        """Captured kernels go on reading the records after it was given up: their memory is no other's until then."""
        from lmtool.inference.engine.cuda.sampling import GraphSampling

        made = []
        enqueue = GraphSampling.enqueue
        monkeypatch.setattr(
            GraphSampling, "enqueue", lambda self, logits: made.append(weakref.ref(self)) or enqueue(self, -logits)
        )
        runner, *_ = runner_of("small")
        with torch.inference_mode():
            recorded = runner.prepared(2, CONTEXT, samples=True)
        recorded.graphs._graphs.clear()  # a CPU's keep all that they refer to
        gc.collect()
        assert not recorded.samples_ahead
        assert made[0]() is not None

    def _without(self, runner_of, caplog, *said):
        runner, *_ = runner_of("small")
        with torch.inference_mode():
            recorded = runner.prepared(2, CONTEXT, samples=True)
            assert not recorded.samples_ahead
            plan = texts_of(runner, 2)
            torch.testing.assert_close(recorded.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)
        assert all(words in caplog.text for words in said)


class TestCounts:
    """What the host knows of counts that the device adds to."""

    def counted(self, tokens, **settings):
        """The counts of a stream whose prompt is three ids."""
        counts = TokenCounts(torch.zeros(12, dtype=torch.int32))
        counts.update(tokens, 3, len(tokens))
        return counts

    def sample(self, counts, token):
        """What the kernel does."""
        counts.counts[token] = (counts.counts[token] + 2) | 1

    def test_several_steps_that_were_not_read(self):
        """Behind ids that only the device knows nothing is uploaded, and nothing is taken back."""
        tokens = [5, 6, 5]
        counts = self.counted(tokens)
        for position, token in enumerate((7, 7, 9), 3):
            self.sample(counts, token)
            assert counts.follows(tokens, position + 1)
            counts.update(tokens, 3, position + 1)
            counts.note_read(position, token)
            tokens.append(token)
        assert counts.counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 5, 0, 3, 0, 0]

    def test_a_step_that_was_dropped(self):
        """What was sampled for nothing is counted once, when it is sampled again."""
        tokens = [5, 6, 5]
        counts = self.counted(tokens)
        self.sample(counts, 7)
        counts.update(tokens, 3, 4)
        self.sample(counts, 8)
        counts.note_read(3, 7)
        tokens.append(7)
        assert not counts.follows(tokens, 4)
        counts.update(tokens, 3, 4)
        assert counts.counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 3, 0, 0, 0, 0]

    def test_an_id_that_was_not_recorded(self):
        """Another in its place is counted instead of it."""
        tokens = [5, 6, 5]
        counts = self.counted(tokens)
        self.sample(counts, 7)
        counts.note_read(3, 7)
        tokens.append(8)
        assert not counts.follows(tokens, 4)
        counts.update(tokens, 3, 4)
        assert counts.counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 3, 0, 0, 0]

    def test_ids_in_between(self):
        """An id that neither host nor device has counted is missing, and cannot be begun without."""
        counts = self.counted([5, 6, 5])
        assert not counts.follows([5, 6, 5], 5)
        assert not TokenCounts(torch.zeros(12, dtype=torch.int32)).follows([5, 6, 5], 4)
