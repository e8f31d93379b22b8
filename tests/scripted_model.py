"""A `TokenModel` whose every token can be told in advance, for tests of what carries tokens.

Streams advance together, one token a step, and a step calls each sink once, as the engine does. A stream's tokens
depend on its prompt alone (`tokens_of`), so crossed or lost ones show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtool.core.errors import RequestError, UnknownModelError, UnknownTokenError
from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.model_entry import ModelEntry
from lmtool.core.streams import refuse
from lmtool.core.types import (
    ChatPrompt,
    GenerateRequest,
    MixedPrompt,
    ModelInfo,
    ScoreRequest,
    TokenOutput,
    Usage,
)

VOCAB_SIZE = 1000
EOS = 999
"""Never produced by itself: only `logit_bias` brings it out."""


def prompt_ids(prompt: object) -> tuple[int, ...]:
    """The ids of any prompt: a text's are its bytes, messages' those of their contents."""
    if isinstance(prompt, str):
        return tuple(prompt.encode())
    if isinstance(prompt, ChatPrompt):
        return prompt_ids("".join(message.content for message in prompt.messages))
    if isinstance(prompt, MixedPrompt):
        return tuple(token for part in prompt.parts for token in prompt_ids(part))
    assert isinstance(prompt, tuple)
    return prompt


def tokens_of(prompt: object, count: int) -> list[int]:
    """The first tokens that the model continues a prompt with, when no bias says otherwise."""
    return [token_at(prompt, number) for number in range(count)]


def token_at(prompt: object, number: int) -> int:
    """One of these tokens."""
    ids = prompt_ids(prompt)
    state = sum((position + 1) * (token + 7) for position, token in enumerate(ids)) + len(ids)
    return (state * 31 + number * 17) % (VOCAB_SIZE - 1)


def logprob_of(token: int) -> float:
    """The logprob that the model gives a token wherever it occurs."""
    return -(token % 64 + 1) / 64


class ScriptedModel:
    """Produces a step per turn of the event loop; with `manual`, only when `step` is called.

    With a fingerprint it goes on behind `generated`, and tells the seed to who asks for it.
    """

    def __init__(self, *, manual: bool = False, name: str = "scripted", fingerprint: str | None = None) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.running: dict[int, ScriptedStream] = {}
        self.requests: list[GenerateRequest | ScoreRequest] = []
        """Everything that was submitted."""
        self.cancelled: list[object] = []
        """Ids of the streams that were cancelled while they ran."""
        self.steps = 0
        self.loaded = asyncio.Event()
        """`info` waits for it."""
        self.loaded.set()
        self._manual = manual
        self._scheduled = False

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel`."""
        self.requests.append(request)
        try:
            self.check(request)
        except RequestError as error:
            return refuse(request.stream_id, sink, error)
        before = len(request.generated) if isinstance(request, GenerateRequest) else 0
        stream = ScriptedStream(self, request, sink, before, before)
        self.running[id(stream)] = stream
        self.schedule()
        return stream

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel`."""
        await self.loaded.wait()
        self.check_name(model)
        about = ModelInfo(self.name, f"ScriptedModel({self.name!r})", "scripted", VOCAB_SIZE, 4096, (EOS,))
        return replace(about, fingerprint=self.fingerprint)

    def models(self) -> list[ModelEntry]:
        """See `Catalogue`."""
        return [ModelEntry(self.name, phase="ready" if self.loaded.is_set() else "loading", context_length=4096)]

    def entry(self, name: str | None) -> ModelEntry:
        """See `Catalogue`."""
        self.check_name(name)
        return self.models()[0]

    def check_name(self, model: str | None) -> None:
        """Raise `UnknownModelError` for a name that is not this model's."""
        if model not in (None, self.name):
            raise UnknownModelError(f"model {model!r} is not served here", f"served: {self.name}")

    def check(self, request: GenerateRequest | ScoreRequest) -> None:
        """Raise `RequestError` for what cannot be served."""
        self.check_name(request.model)
        for token in prompt_ids(request.prompt):
            if token >= VOCAB_SIZE:
                raise UnknownTokenError(f"id {token} is not in the vocabulary ({VOCAB_SIZE})")

    def schedule(self) -> None:
        """Arrange for the next step, if there is one to make."""
        if not self._manual and not self._scheduled and any(s.ready for s in self.running.values()):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.step()
        self.schedule()

    def step(self) -> None:
        """Advance every stream that is not paused by one token."""
        self.steps += 1
        by_sink: dict[int, tuple[Sink, list[TokenOutput]]] = {}
        for stream in [s for s in self.running.values() if s.ready]:
            output = stream.next_output()
            by_sink.setdefault(id(stream.sink), (stream.sink, []))[1].append(output)
            if output.last:
                self.running.pop(id(stream), None)
        for sink, outputs in by_sink.values():
            sink(outputs)


@dataclass(eq=False)
class ScriptedStream:
    """One stream, and the hold on it."""

    model: ScriptedModel
    request: GenerateRequest | ScoreRequest
    sink: Sink
    position: int = 0
    before: int = 0
    """Tokens that count as generated."""
    paused: bool = False
    pauses: int = 0
    _cancelled: bool = False

    @property
    def ready(self) -> bool:
        return self._cancelled or not self.paused

    def cancel(self) -> None:
        if id(self) in self.model.running and not self._cancelled:
            self._cancelled = True
            self.model.cancelled.append(self.request.stream_id)
            self.model.schedule()

    def pause(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        self.paused = False
        self.model.schedule()

    def next_output(self) -> TokenOutput:
        if self._cancelled:
            return TokenOutput(self.request.stream_id, finish_reason="cancelled", usage=self._usage())
        if isinstance(self.request, ScoreRequest):
            return self._scored(self.request)
        return self._generated(self.request)

    def _scored(self, request: ScoreRequest) -> TokenOutput:
        scored = prompt_ids(request.scored)
        if not scored:
            return TokenOutput(request.stream_id, finish_reason="stop", usage=self._usage())
        token = scored[self.position]
        last = self.position == len(scored) - 1
        top = None if request.top_logprobs is None else ((token, logprob_of(token)),)
        return self._output(token, top, "stop" if last else None)

    def _generated(self, request: GenerateRequest) -> TokenOutput:
        sampling = request.sampling
        if sampling.max_tokens == 0:
            return TokenOutput(request.stream_id, finish_reason="length", usage=self._usage())
        bias = {token: nats for token, nats in sampling.logit_bias.items() if nats > 0}
        token = max(bias, key=bias.__getitem__) if bias else token_at(request.prompt, self.position)
        alternatives = (
            (token, 0.0 if bias else logprob_of(token)),
            *(((token + further) % VOCAB_SIZE, -2.0 - further) for further in range(1, sampling.top_logprobs)),
        )
        reason = None
        if self.position + 1 >= sampling.max_tokens:
            reason = "length"
        if token == EOS or token in sampling.stop_token_ids:
            reason = "stop"
        return self._output(token, alternatives, reason)

    def _output(self, token: int, top: Sequence[tuple[int, float]] | None, reason: object) -> TokenOutput:
        self.position += 1
        return TokenOutput(
            self.request.stream_id,
            token,
            top[0][1] if top else logprob_of(token),
            None if top is None else tuple(top),
            chr(97 + token % 26) if self.request.text else None,
            reason,  # type: ignore[arg-type]  # a FinishReason or None
            self._usage() if reason else None,
            seed=self._seed() if self.position == self.before + 1 else None,
        )

    def _seed(self) -> int | None:
        request = self.request
        if self.model.fingerprint is None or not isinstance(request, GenerateRequest) or not request.resumable:
            return None
        return 7 if request.sampling.seed is None else request.sampling.seed

    def _usage(self) -> Usage:
        return Usage(len(prompt_ids(self.request.prompt)), self.position - self.before)
