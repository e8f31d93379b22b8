"""A step that fails ends the streams of that step, and a device that is lost all streams; the next ones run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import torch

from lmtool.core.errors import DeviceLostError
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine import device
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.device import is_lost, step_error
from lmtool.inference.engine.engine_loader import load_engine

NEW = 16
"""Streams that run after a fault."""
SAMPLING = SamplingParams(max_tokens=6, ignore_eos=True, temperature=1.0, seed=1)
PROMPT = tuple(range(3, 40))


class PanicError(BaseException):
    """What a library in Rust raises, which is no `Exception`."""


def raising(problem: BaseException) -> Callable[..., torch.Tensor]:
    """A pass that fails."""

    def logits(*_: object) -> torch.Tensor:
        raise problem

    return logits


def of_no_numbers(forward: object, batch: object, _attention: object) -> torch.Tensor:
    """A pass whose logits are no numbers."""
    rows: int = batch.logits  # type: ignore[attr-defined]
    return torch.full((max(rows, 1), 101), torch.nan)


def cpu_without_memory() -> RuntimeError:
    """What torch raises for a CPU."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46, dtype=torch.uint8)
    return caught.value


FAULTS: dict[str, tuple[Callable[[], Callable[..., torch.Tensor]], str]] = {
    "exception": (lambda: raising(ZeroDivisionError()), "server"),
    "panic": (lambda: raising(PanicError()), "server"),
    "no memory in Python": (lambda: raising(MemoryError()), "out_of_memory"),
    "no memory on a CPU": (lambda: raising(cpu_without_memory()), "out_of_memory"),
    "no memory on a GPU": (lambda: raising(torch.OutOfMemoryError("no room")), "out_of_memory"),
    "not numbers": (lambda: of_no_numbers, "server"),
}


@pytest.fixture(scope="module")
def engine(engine_of):
    """An engine that all faults of steps happen to, one after the other."""
    return engine_of("llama", max_streams=32)


def requests(count: int) -> list[GenerateRequest]:
    """Streams that share the beginning of their prompts."""
    return [GenerateRequest(number, (*PROMPT, number + 3), SAMPLING) for number in range(count)]


@pytest.mark.parametrize("fault", FAULTS)
async def test_then_new_streams_run(engine, run, monkeypatch, fault) -> None:
    """The streams of the step end with a kind that tells whether to try again; 16 new ones are what they were."""
    make, code = FAULTS[fault]
    before = await run(engine, *requests(NEW))
    forward, failing = type(engine._runner.forward), make()
    with monkeypatch.context() as patch:
        patch.setattr(forward, "logits", failing)
        failed = await run(engine, *requests(3), ScoreRequest("score", PROMPT, (5, 6)))
    for outputs in failed.values():
        assert (outputs[-1].error_code, outputs[-1].retryable) == (code, True)
    after = await run(engine, *requests(NEW))
    for number, outputs in before.items():
        assert [(one.token, one.logprob) for one in after[number]] == [(one.token, one.logprob) for one in outputs]
    info = await engine.info()
    assert (info.running, info.waiting) == (0, 0)


async def test_what_was_computed_of_no_numbers_is_not_used_again(checkpoint, run) -> None:
    """Keys and values beside logits that are not numbers are no beginning of another stream."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    try:
        before = await run(engine, *requests(2))
        with torch.inference_mode():
            for pool in (pool for pools in engine._runner.cache._pools.values() for pool in pools):
                pool[:, :, 1:] = torch.nan
        assert (await run(engine, *requests(1)))[0][-1].error_code == "server"
        after = await run(engine, *requests(2))
        assert [[one.token for one in after[n]] for n in range(2)] == [
            [one.token for one in before[n]] for n in range(2)
        ]
    finally:
        engine.close()


async def test_a_fault_between_two_steps(engine, run, monkeypatch) -> None:
    """What fails in the handling of one stream ends that stream; its neighbour gets all its tokens."""
    queue = type(engine)._queue

    def failing(self: object, stream: object) -> None:
        if stream.stream_id == "bad":  # type: ignore[attr-defined]
            raise PanicError
        queue(self, stream)

    monkeypatch.setattr(type(engine), "_queue", failing)
    outputs = await run(engine, GenerateRequest("bad", PROMPT, SAMPLING), GenerateRequest("fine", PROMPT, SAMPLING))
    assert [one.error_code for one in outputs["bad"]] == ["server"]
    assert len(outputs["fine"]) == SAMPLING.max_tokens


async def test_a_lost_device(checkpoint, run, monkeypatch) -> None:
    """Every stream ends with an error that sends it elsewhere, who asked is told once why, and nothing begins."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    told: list[Exception] = []
    heard = threading.Event()
    engine.on_lost(lambda failure: (told.append(failure), heard.set()))
    monkeypatch.setattr(device, "is_lost", lambda _device, _problem: True)
    monkeypatch.setattr(type(engine._runner.forward), "logits", raising(RuntimeError("CUDA error: gone\nmore")))
    try:
        outputs = await run(engine, *requests(3))
        assert {(one[-1].error_code, one[-1].retryable) for one in outputs.values()} == {("connection", True)}
        assert "the device cpu is lost: CUDA error: gone; the server ends" in outputs[0][-1].error
        assert await asyncio.to_thread(heard.wait, 30)
        assert [(type(one), one.exit_code) for one in told] == [(DeviceLostError, 8)]
        assert "stopped" in (await run(engine, *requests(1)))[0][-1].error
    finally:
        engine.close()


async def test_a_bug_of_the_engine_is_told(checkpoint, run, monkeypatch, caplog) -> None:
    """What ends the engine's thread, a panic too, is told to who asked."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    told: list[Exception] = []
    heard = threading.Event()
    engine.on_lost(lambda failure: (told.append(failure), heard.set()))

    def plan() -> None:
        raise PanicError("of a library")

    monkeypatch.setattr(engine._scheduler, "plan", plan)
    try:
        assert (await run(engine, *requests(1)))[0][-1].error_code == "server"
        assert await asyncio.to_thread(heard.wait, 30)
        assert isinstance(told[0], Exception)
        assert "PanicError: of a library" in str(told[0])
    finally:
        engine.close()


async def test_closing_is_no_loss(checkpoint) -> None:
    """An engine that is closed tells nobody."""
    engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    told: list[Exception] = []
    engine.on_lost(told.append)
    engine.close()
    assert told == []


class TestIsLost:
    """Whether anything can still be computed is found out by trying."""

    CUDA = torch.device("cuda", 0)

    @pytest.mark.parametrize(
        ("answer", "lost"),
        [(None, False), (RuntimeError("CUDA error"), True), (torch.OutOfMemoryError("full"), False)],
        ids=["works", "fails", "is full"],
    )
    def test_by_trying(self, monkeypatch, answer, lost) -> None:
        """A GPU on which a small computation fails is lost; one that is full is not."""

        class Device:
            def add_(self, _number: int) -> Device:
                return self

            def item(self) -> float:
                if answer is not None:
                    raise answer
                return 1.0

        monkeypatch.setattr(device.torch, "zeros", lambda *_, **__: Device())
        monkeypatch.setattr(device.torch.cuda, "synchronize", lambda _: None)
        assert is_lost(self.CUDA, RuntimeError("a step failed")) is lost

    def test_without_trying(self, monkeypatch) -> None:
        """A CPU is never lost, nor is a device that had no memory for a step."""
        monkeypatch.setattr(device.torch, "zeros", lambda *_, **__: 1 / 0)
        assert not is_lost(torch.device("cpu"), RuntimeError())
        assert not is_lost(self.CUDA, torch.OutOfMemoryError())

    def test_what_streams_are_told(self) -> None:
        """An error of the connection, upon which clients connect again and balancers go on elsewhere."""
        error = step_error(DeviceLostError("the device cuda:0 is lost: gone"))
        assert (error.code, error.retryable) == ("connection", True)
