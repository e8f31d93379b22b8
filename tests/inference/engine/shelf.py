"""Models without weights for the host of models, taken from a shelf that opens when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from lmtool.core.interfaces import Sink
from lmtool.core.prompt_limits import LimitsByModel
from lmtool.core.types import GenerateRequest, LoadProgress, ModelInfo, ScoreRequest, StreamId, TokenOutput
from lmtool.inference.engine.model_manager import ServedModel

PATIENCE = 20.0
"""Seconds after which what does not come counts as never coming."""


class EchoStream:
    def __init__(self, model: EchoModel, request: GenerateRequest | ScoreRequest, sink: Sink) -> None:
        self.model = model
        self.request = request
        self.sink = sink
        self.paused = False

    def cancel(self) -> None:
        self.end(TokenOutput(self.request.stream_id, finish_reason="cancelled"))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def end(self, output: TokenOutput) -> None:
        if self in self.model.running:
            self.model.running.remove(self)
            self.model.loop.call_soon(self.sink, [output])


class EchoModel:
    """A loaded model that says a prompt's ids back, all streams one id a step; the test takes the steps."""

    def __init__(self, source: str, loop: asyncio.AbstractEventLoop) -> None:
        self.source = source
        self.loop = loop
        self.requests: list[GenerateRequest | ScoreRequest] = []
        self.running: list[EchoStream] = []
        self.drained: float | None = None
        self.closed = threading.Event()
        self.closed_in = ""
        self.refuses_to_close = False
        self.limits: LimitsByModel = {}
        self.parameters: int | None = None

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> EchoStream:
        assert not self.closed.is_set()
        self.requests.append(request)
        made = EchoStream(self, request, sink)
        self.running.append(made)
        return made

    async def info(self, model: str | None = None) -> ModelInfo:
        assert not self.closed.is_set()
        return ModelInfo("inner", f"load('{self.source}')", "echo", parameters=self.parameters, dtype="float32")

    async def drain(self, seconds: float) -> int:
        self.drained = seconds
        return len(self.running)

    def close(self) -> None:
        self.closed_in = threading.current_thread().name
        self.closed.set()
        if self.refuses_to_close:
            raise OSError("the device is gone")

    async def finish(self) -> None:
        """End all streams that are not paused."""
        for made in [made for made in self.running if not made.paused]:
            made.end(TokenOutput(made.request.stream_id, 7, -0.1, finish_reason="length"))
        await turn()


class Shelf:
    """Loads models: each load waits until the test allows it."""

    def __init__(self, *, open_: bool = True) -> None:
        self.loop = asyncio.get_running_loop()
        self.loads: list[str] = []
        self.models: dict[str, EchoModel] = {}
        self.gate = threading.Event()
        self.errors: dict[str, BaseException] = {}
        self.parameters: dict[str, int] = {}
        """Of each model, in float32."""
        self.started = asyncio.Event()
        if open_:
            self.gate.set()

    def load(self, source: str, tell: Callable[[LoadProgress], None]) -> EchoModel:
        self.loads.append(source)
        self.loop.call_soon_threadsafe(self.started.set)
        tell(LoadProgress(source, "loading", 1, 2))
        assert self.gate.wait(PATIENCE)
        tell(LoadProgress(source, "ready", 2, 2, "done"))
        if source in self.errors:
            raise self.errors[source]
        self.models[source] = EchoModel(source, self.loop)
        self.models[source].parameters = self.parameters.get(source)
        return self.models[source]


class Collector:
    """A sink that keeps what it got."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        self.outputs += outputs

    def of(self, stream_id: StreamId) -> list[TokenOutput]:
        return [output for output in self.outputs if output.stream_id == stream_id]


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def turn(turns: int = 5) -> None:
    """Let the event loop run what is due."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for the threads to bring something about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


def named(*names: str) -> list[ServedModel]:
    return [ServedModel(name, (name,)) for name in names]


def sized(**sizes: int) -> list[ServedModel]:
    """Models with so many bytes on disk."""
    return [ServedModel(name, (name,), size_bytes=size) for name, size in sizes.items()]


def anything(name: str) -> ServedModel:
    """Whatever a client names."""
    return ServedModel(name, (name,))


def ask(stream_id: StreamId, model: str | None = None) -> GenerateRequest:
    return GenerateRequest(stream_id, (1, 2), model=model)
