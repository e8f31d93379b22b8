"""Capturing passes: what is left behind where one fails."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lmtool.inference.engine.cuda.kernels import tiles as module
from lmtool.inference.engine.cuda.kernels.tiles import CaptureStream


class Driver:
    """torch's CUDA interface without a GPU: what is called, and which captures CUDA refuses to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refuses: int = 0) -> None:
        self.calls: list[str] = []
        self.streams = ["own"]
        self._refuses = refuses
        names = {
            "Stream": lambda device: SimpleNamespace(wait_stream=lambda own: None),
            "CUDAGraph": lambda: SimpleNamespace(
                capture_begin=lambda **settings: self.calls.append("begin"),
                capture_end=self._end,
                reset=lambda: self.calls.append("reset"),
                replay=lambda: self.calls.append("replay"),
            ),
            "current_stream": lambda device=None: SimpleNamespace(wait_stream=lambda side: None),
            "stream": self._stream,
            "graph_pool_handle": lambda: (0, 7),
            "current_device": lambda: 0,
            "synchronize": lambda device: None,
            "empty_cache": lambda: None,
        }
        for name, value in names.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, self._noting(name), raising=False)
        monkeypatch.setattr(torch, "zeros", lambda count, device: SimpleNamespace(zero_=lambda: None))
        monkeypatch.setattr(module, "_broken", [])
        monkeypatch.setattr(module, "_idle", {})

    def _noting(self, name):
        return lambda index, pool: self.calls.append(f"{name} {index} {pool}")

    @contextlib.contextmanager
    def _stream(self, stream):
        self.streams.append("side")
        try:
            yield
        finally:
            self.streams.pop()

    def _end(self):
        self.calls.append("end")
        if self._refuses:
            self._refuses -= 1
            raise RuntimeError("operation failed due to a previous error during capture")


GPU = torch.device("cuda:0")


def failing_in_the(run_number):
    """A pass that fails when it is called for the nth time."""
    calls = []

    def run():
        calls.append(1)
        if len(calls) == run_number:
            raise ValueError("this model waits for the device")

    return run


def test_on_cpu_the_pass_itself():
    """Nothing is captured: the pass has run once, and runs at each replay."""
    ran = []
    replay = CaptureStream(torch.device("cpu")).capture(lambda: ran.append(1))
    replay()
    assert len(ran) == 2


def test_a_capture(monkeypatch):
    """The pass runs once before it is captured, both on the side stream; then kernels alone are replayed."""
    driver, ran = Driver(monkeypatch), []
    replay = CaptureStream(GPU).capture(lambda: ran.append(driver.streams[-1]))
    replay()
    assert (ran, driver.calls, driver.streams) == (["side", "side"], ["begin", "end", "replay"], ["own"])


def test_a_stream_of_its_own(monkeypatch):
    """Those who capture at the same time have each their own; one that is gone leaves its stream to the next."""
    Driver(monkeypatch)
    first, second = CaptureStream(GPU), CaptureStream(GPU)
    own = [first._stream, second._stream]
    assert own[0] is not own[1]
    del second
    assert CaptureStream(GPU)._stream is own[1]
    assert first._stream is own[0]


@pytest.mark.parametrize(("run_number", "calls"), [(1, []), (2, ["begin", "end", "reset"])])
def test_a_pass_that_fails(monkeypatch, run_number, calls):
    """The capture is ended and its memory released; the thread is on its own stream, and the error is the pass's."""
    driver = Driver(monkeypatch)
    with pytest.raises(ValueError, match="waits for the device"):
        CaptureStream(GPU).capture(failing_in_the(run_number))
    assert (driver.calls, driver.streams) == (calls, ["own"])


CLEANED = ["_cuda_endAllocateToPool 0 (0, 7)", "_cuda_releasePool 0 (0, 7)", "begin", "end"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_that_cannot_be_ended(monkeypatch, fails):
    """The allocator stops to count it, its pool is released, another capture ends; the graph itself is kept."""
    driver = Driver(monkeypatch, refuses=1)
    run = failing_in_the(2 if fails else 3)
    with pytest.raises(ValueError if fails else RuntimeError, match="waits for" if fails else "previous error"):
        CaptureStream(GPU).capture(run)
    assert (driver.calls, driver.streams) == (["begin", "end", *CLEANED], ["own"])
    assert len(module._broken) == 1


@pytest.mark.cuda
def test_after_a_failed_capture_on_a_gpu(gpu):
    """Behind a pass that waits for the device: own stream, random numbers, no memory kept, another capture."""
    torch.cuda.empty_cache()
    before, own = torch.cuda.memory_reserved(gpu), torch.cuda.current_stream(gpu)
    _fail_and_capture(gpu, own)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(gpu) <= before + (4 << 20)


def _fail_and_capture(gpu, own):
    data, total = torch.ones(1 << 20, device=gpu), torch.zeros(1, device=gpu)
    with pytest.raises(RuntimeError):
        CaptureStream(gpu).capture(lambda: float((data * 2).sum()))
    assert torch.cuda.current_stream(gpu) == own
    assert torch.randn(4, device=gpu).isfinite().all()
    replay = CaptureStream(gpu).capture(lambda: total.add_(data.sum()))
    replay()
    assert float(total) == 2 * len(data)  # once before the capture
