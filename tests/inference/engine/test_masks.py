"""Streams held to a constraint: masks come last, a bad constraint ends its own stream, nobody waits for a slow one."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
import torch

from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine import logits as logits_module
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.logits import apply_masks, apply_masks_on_cpu
from tests.inference.engine.guiding import StepCompiler, steps

EOS = 2
TEN = SamplingParams(max_tokens=10)


@pytest.fixture
def guided(checkpoint):
    """Engines of a small Llama with a compiler each."""
    engines = []

    def make(compiler, **settings):
        engine = load_engine(str(checkpoint("llama")), EngineConfig(device="cpu", dtype="float32", **settings))
        engine.set_guide_compiler(compiler)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def watched():
    """Outputs, an event that tells of a stream's end, and the sink that they come through."""
    came, ended = [], asyncio.Event()

    def sink(outputs):
        came.extend(outputs)
        if any(output.last for output in outputs):
            ended.set()

    return came, ended, sink


def ids(outputs):
    return [output.token for output in outputs if output.token is not None]


@pytest.mark.parametrize(
    "sampling",
    [
        TEN,
        replace(TEN, temperature=2.0, seed=3, top_p=0.5, repetition_penalty=3.0),
        replace(TEN, min_tokens=8, ignore_eos=True),
        replace(TEN, logit_bias={50: 100.0, 7: -5.0}),
        replace(TEN, stop_token_ids=(50,)),
        replace(TEN, logprobs_mode="raw"),
    ],
    ids=["greedy", "sampled", "no eos", "bias", "stop ids", "raw"],
)
async def test_nothing_escapes_the_mask(guided, run, sampling):
    """Whatever the other parameters say, each id is an allowed one, and the end comes where the constraint says."""
    engine = guided(StepCompiler(EOS))
    request = GenerateRequest(0, (3, 4, 5), sampling, constraint=steps("7,8;40,41,64;9"))
    outputs = (await run(engine, request))[0]
    first, second, third, end = ids(outputs)
    assert first in {7, 8}
    assert second in {40, 41, 64}
    assert (third, end) == (9, EOS)
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].warnings == ("a warning",)
    if sampling.logprobs_mode == "biased":
        assert outputs[2].logprob == 0.0


async def test_stop_ids_cut(guided, run):
    """A stop id within the constraint ends the stream, which says so; before `min_tokens` only if no other may come."""
    engine = guided(StepCompiler(EOS))
    for least, held, expected in ((0, "7;8;9", [7, 8]), (2, "7,8;9", [7, 9, EOS]), (2, "8;9", [8])):
        sampling = replace(TEN, stop_token_ids=(8,), min_tokens=least)
        outputs = (await run(engine, GenerateRequest(0, (3,), sampling, constraint=steps(held))))[0]
        assert ids(outputs) == expected
        assert outputs[-1].finish_reason == "stop"
        assert outputs[-1].stopped_by == (8 if expected[-1] == 8 else None)


async def test_cut_short(guided, run):
    """`max_tokens` ends it with `length`."""
    engine = guided(StepCompiler(EOS))
    request = GenerateRequest(0, (3,), SamplingParams(max_tokens=2), constraint=steps("7;8;9"))
    outputs = (await run(engine, request))[0]
    assert (ids(outputs), outputs[-1].finish_reason) == ([7, 8], "length")


async def test_neighbours_keep_their_bits(guided, run):
    """A free stream beside constrained ones is the stream that it is alone."""
    engine = guided(StepCompiler(EOS), prefix_cache=False)
    free = GenerateRequest("free", (3, 4, 5), replace(TEN, temperature=1.0, seed=1, ignore_eos=True))
    alone = (await run(engine, free))["free"]
    held = [GenerateRequest(n, (3, n + 5), TEN, constraint=steps("7,8;9,10;11")) for n in range(6)]
    together = await run(engine, *held[:3], free, *held[3:])
    assert together["free"] == alone


async def test_a_bad_constraint_ends_its_own_stream(guided, run):
    """An error before the first token, and none for anybody else."""
    engine = guided(StepCompiler(EOS))
    outputs = await run(
        engine,
        GenerateRequest(0, (3,), TEN, constraint=steps("bad")),
        GenerateRequest(1, (3,), replace(TEN, max_tokens=4)),
    )
    (refused,) = outputs[0]
    assert (refused.error, refused.error_code) == ("this is bad", "invalid_constraint")
    assert outputs[1][-1].error is None


async def test_the_mask_is_stronger_than_a_bias(guided, run):
    """A bias against everything that is allowed changes nothing."""
    engine = guided(StepCompiler(EOS))
    sampling = replace(TEN, logit_bias={7: float("-inf")})
    outputs = (await run(engine, GenerateRequest(0, (3,), sampling, constraint=steps("7;8"))))[0]
    assert ids(outputs) == [7, 8, EOS]


async def test_a_slow_compile_stops_nobody(guided):
    """While one constraint is compiled, its prompt is computed up to the last chunk and others stream to their end."""
    compiler = StepCompiler(EOS, at_once=False)
    engine = guided(compiler)
    came, ended, sink = watched()
    engine.submit(GenerateRequest("slow", tuple(range(3, 83)), TEN, constraint=steps("7")), sink)
    engine.submit(GenerateRequest("quick", (3,), replace(TEN, ignore_eos=True)), sink)
    await asyncio.wait_for(ended.wait(), 30)
    assert {output.stream_id for output in came} == {"quick"}
    (slow,) = [stream for stream in engine._streams.values() if stream.stream_id == "slow"]
    assert slow.sequence.computed == 64
    ended.clear()
    compiler.finish()
    await asyncio.wait_for(ended.wait(), 30)
    assert [output.token for output in came if output.stream_id == "slow"] == [7, EOS]


async def test_cancelled_while_compiling(guided):
    """A stream that is cancelled meanwhile ends at once and gives its compilation up."""
    compiler = StepCompiler(EOS, at_once=False)
    engine = guided(compiler)
    came, ended, sink = watched()
    handle = engine.submit(GenerateRequest(0, (3,), TEN, constraint=steps("7")), sink)
    handle.cancel()
    await asyncio.wait_for(ended.wait(), 30)
    assert came[-1].finish_reason == "cancelled"
    (_, answer) = compiler.waiting[0]
    assert answer.cancelled()


async def test_an_engine_without_a_compiler(engine_of, run):
    """A model that cannot be guided, such as one without a tokenizer, refuses by name."""
    (refused,) = (await run(engine_of("llama"), GenerateRequest(0, (3,), TEN, constraint=steps("7"))))[0]
    assert refused.error.startswith("this server enforces no constraints")


def test_the_compiler_ends_with_its_engine(checkpoint):
    """Whoever closes the engine closes what it was given."""
    compiler = StepCompiler(EOS)
    engine = load_engine(str(checkpoint("llama")), EngineConfig(device="cpu", dtype="float32"))
    engine.set_guide_compiler(compiler)
    engine.close()
    assert compiler.closed


class Blocking(StepCompiler):
    """Masks of sluggish guides take until `go` is set; `broken` ones fail."""

    def __init__(self, *, broken=False):
        super().__init__(EOS, sluggish=True)
        self.go, self.broken, self.threads, self.asked = threading.Event(), broken, set(), []

    def fill(self, rows, mask):
        if any(guide.slow for guide, _ in rows):
            self.threads.add(threading.current_thread().name)
            self.asked += [guide.allowed() for guide, _ in rows]
            assert self.go.wait(30)
            if self.broken:
                raise RuntimeError("oops")
        super().fill(rows, mask)


async def test_a_slow_mask_stops_nobody(guided):
    """Who is known to take long over a mask waits for it alone, and gets what it would have got."""
    compiler = Blocking()
    engine = guided(compiler)
    came, ended, sink = watched()
    engine.submit(GenerateRequest("slow", tuple(range(3, 83)), TEN, constraint=steps("7;8,9;10")), sink)
    engine.submit(GenerateRequest("quick", (3,), replace(TEN, ignore_eos=True)), sink)
    await asyncio.wait_for(ended.wait(), 30)
    assert [output.token is not None for output in came if output.stream_id == "quick"] == [True] * 10
    assert {output.stream_id for output in came} == {"quick"}
    ended.clear()
    compiler.go.set()
    await asyncio.wait_for(ended.wait(), 30)
    first, _, third, end = ids(output for output in came if output.stream_id == "slow")
    assert (first, third, end) == (7, 10, EOS)
    assert all(name.startswith("lmtool-slow-masks") for name in compiler.threads)


async def test_cancelled_while_masking(guided, run):
    """A stream that is cancelled ends at once; a mask that waits behind its own is not even begun."""
    compiler = Blocking()
    engine = guided(compiler)
    came, ended, sink = watched()
    handle = engine.submit(GenerateRequest(0, (3,), TEN, constraint=steps("7")), sink)
    while not compiler.threads:
        await asyncio.sleep(0.01)
    handle.cancel()
    await asyncio.wait_for(ended.wait(), 30)
    assert came[-1].finish_reason == "cancelled"
    behind = engine.submit(GenerateRequest(1, (4,), TEN, constraint=steps("8")), sink)
    await asyncio.sleep(0.05)
    behind.cancel()
    await asyncio.sleep(0.05)
    compiler.go.set()
    assert ids((await run(engine, GenerateRequest(2, (3,), TEN, constraint=steps("7"))))[2]) == [7, EOS]
    assert {8} not in compiler.asked


async def test_a_slow_mask_that_fails(guided, run, caplog):
    """A mistake in the library ends the stream that met it, and is logged."""
    compiler = Blocking(broken=True)
    compiler.go.set()
    engine = guided(compiler)
    outputs = await run(
        engine,
        GenerateRequest(0, (3,), TEN, constraint=steps("7;8")),
        GenerateRequest(1, (3,), replace(TEN, ignore_eos=True)),
    )
    assert "RuntimeError" in outputs[0][-1].error
    assert outputs[1][-1].error is None
    assert "a mask could not be filled" in caplog.text


@pytest.mark.usefixtures("kernels")
class TestOnLogits:
    """Masks on logits: the kernel does what the table does."""

    @staticmethod
    def _words(rows, vocabulary, seed):
        words = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocabulary // 32)), dtype=torch.int32, generator=seed)
        words[:, ::3] = -1  # nothing forbidden
        words[:, 1::4] = 0  # everything
        return words

    @pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 1000, 4096])
    def test_only_allowed_ids_stay(self, vocabulary):
        """In the rows that are named, whatever their order; others stay as they were."""
        seed = torch.Generator().manual_seed(vocabulary)
        logits = torch.randn(5, vocabulary, generator=seed)
        words, expected = self._words(3, vocabulary, seed), logits.clone()
        for row, own in zip((4, 0, 2), words, strict=True):
            bits = own.unsqueeze(1) >> torch.arange(32) & 1
            expected[row, bits.flatten()[:vocabulary] == 0] = float("-inf")
        assert apply_masks_on_cpu(logits, [4, 0, 2], words)
        assert torch.equal(logits, expected)

    def test_the_table_does_the_same(self, monkeypatch):
        """Where there is no compiler."""
        seed = torch.Generator().manual_seed(1)
        logits, words = torch.randn(3, 777, generator=seed), self._words(2, 777, seed)
        by_kernel, by_table = logits.clone(), logits.clone()
        apply_masks(by_kernel, [0, 2], words)
        monkeypatch.setattr(logits_module, "kernels", lambda: None)
        assert not apply_masks_on_cpu(logits, [0, 2], words)
        apply_masks(by_table, [0, 2], words)
        assert torch.equal(by_kernel, by_table)
        assert by_table.isinf().any()

    def test_what_c_cannot_see(self):
        """Rows that do not lie one behind the other are left to the table."""
        logits = torch.zeros(64, 4).t()
        assert not apply_masks_on_cpu(logits, [0], torch.zeros(1, 2, dtype=torch.int32))
        assert not logits.isinf().any()
