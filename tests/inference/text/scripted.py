"""A model that says what a script says, id by id, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from lmtool.core.interfaces import Sink, StreamHandle, Verdict
from lmtool.core.types import (
    Constraint,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    ScoreRequest,
    StreamId,
    TokenOutput,
    Usage,
)
from lmtool.inference.text.tokenizer import TextTokenizer

END = 0
"""The id of `<|end|>`."""


class ScriptedStream:
    def __init__(self, request: GenerateRequest | ScoreRequest, sink: Sink, script: Sequence[int]) -> None:
        self.request = request
        self.sink = sink
        self.left = list(script)
        self.sent = 0
        self.paused = False
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def next(self) -> TokenOutput:
        usage = Usage(len(self.request.prompt), self.sent)
        if self.cancelled:
            ending = replace(usage, cached_tokens=1)
            return TokenOutput(self.request.stream_id, finish_reason="cancelled", usage=ending)
        if not self.left:
            return TokenOutput(self.request.stream_id, finish_reason="length", usage=usage)
        token = self.left.pop(0)
        self.sent += 1
        last = token == END or not self.left
        return TokenOutput(
            self.request.stream_id,
            token,
            -0.5,
            ((token, -0.5),),
            finish_reason=None if not last else "stop" if token == END else "length",
            usage=replace(usage, completion_tokens=self.sent, cached_tokens=1) if last else None,
        )


class ScriptedModel:
    """A token model whose streams all say the same ids, one a step; the test takes the steps."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.script = list(script)
        self.streams: list[ScriptedStream] = []
        self.submitted: list[ScriptedStream] = []
        self.broken: str | None = None
        self.drained: float | None = None
        self.closed = False

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        script = request.scored if isinstance(request, ScoreRequest) else self.script
        made = ScriptedStream(request, sink, script)
        self.streams.append(made)
        self.submitted.append(made)
        return made

    async def info(self, model: str | None = None) -> ModelInfo:
        return ModelInfo(model or "scripted", "Scripted()", "scripted")

    async def drain(self, seconds: float) -> int:
        self.drained = seconds
        return len(self.streams)

    def close(self) -> None:
        self.closed = True

    def step(self, tokens: int = 1) -> None:
        """Let every stream that runs give its next outputs, in one call for each sink."""
        by_sink: dict[Sink, list[TokenOutput]] = {}
        for made in list(self.streams):
            for _ in range(tokens):
                if made in self.streams and (made.cancelled or not made.paused):
                    output = self._next(made)
                    by_sink.setdefault(made.sink, []).append(output)
                    if output.last:
                        self.streams.remove(made)
        for sink, outputs in by_sink.items():
            sink(outputs)

    def _next(self, made: ScriptedStream) -> TokenOutput:
        if self.broken:
            return TokenOutput(made.request.stream_id, error=self.broken, error_code="server")
        return made.next()

    def run(self) -> None:
        for _ in range(1000):
            if not self.streams:
                return
            self.step()


class ScriptedCheck:
    """Validates answers as a test says, when it says so."""

    def __init__(self, outcome: Verdict | None = None, kind: str = "json_schema") -> None:
        self.outcome = outcome
        self.kind = kind
        self.begun: list[tuple[str, tuple[str, ...]]] = []
        self.futures: list[Future[Verdict]] = []
        self.closed = False

    def applies_to(self, constraint: Constraint) -> bool:
        return constraint.kind == self.kind

    def begin(self, constraint: Constraint, text: str, warnings: Sequence[str]) -> Future[Verdict]:
        self.begun.append((text, tuple(warnings)))
        self.futures.append(Future())
        if self.outcome is not None:
            self.futures[-1].set_result(self.outcome)
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True


class Collector:
    """A sink that keeps what it got, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[TokenOutput]] = []

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        self.calls.append(list(outputs))

    def of(self, stream_id: StreamId) -> list[TokenOutput]:
        return [output for call in self.calls for output in call if output.stream_id == stream_id]

    def text(self, stream_id: StreamId) -> str:
        return "".join(output.text or "" for output in self.of(stream_id))


def generate(stream_id: StreamId = 1, prompt: object = (), *, text: bool = True, **sampling: object) -> GenerateRequest:
    return GenerateRequest(stream_id, prompt, SamplingParams(**sampling), text=text)


def said(tokenizer: TextTokenizer, text: str) -> ScriptedModel:
    """Return a model that says this text and ends it."""
    return ScriptedModel([*tokenizer.encode(text), END])
