"""vLLM's engine as a `TokenModel`; runs in its environment, and imports nothing of it at module level."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.cli.vllm.translation import (
    Alternatives,
    constrained_logprobs,
    holding,
    holds,
    logprobs,
    sampling,
    scored,
    scoring,
)
from lmtool.engine.request_check import clamped
from lmtool.errors import (
    ConnectError,
    ConstraintError,
    ContextOverflowError,
    LmtoolError,
    RequestError,
    ServerError,
    UnknownTokenError,
)
from lmtool.interfaces import failure
from lmtool.types import FinishReason, GenerateRequest, ModelInfo, ScoreRequest, TokenOutput, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lmtool.cli.vllm.guides import RemoteGuides
    from lmtool.cli.vllm.told import Best
    from lmtool.interfaces import Sink, StreamHandle


class VllmModel:
    """Streams of an `AsyncLLM`. Belongs to the event loop in which it was made."""

    def __init__(
        self,
        engine: Any,
        info: ModelInfo,
        guides: RemoteGuides | None = None,
        diagnose: Callable[[], ConnectError] = lambda: ConnectError("vLLM's engine has ended"),
        max_logprobs: int | None = None,
    ) -> None:
        """engine: a `vllm.v1.engine.async_llm.AsyncLLM` without a tokenizer. guides: what holds streams in it.

        diagnose: says why the engine has ended, once it has. max_logprobs: most alternatives that it gives a token.
        """
        self._engine = engine
        self._guides = guides
        self._info = info
        self._diagnose = diagnose
        self._max_logprobs = max_logprobs
        self._numbers = itertools.count()

    @property
    def failure(self) -> ConnectError | None:
        """Why nothing can be computed any more: the engine's processes have ended, and the worker has to as well."""
        return self._diagnose() if self._engine.errored else None

    @property
    def info_now(self) -> ModelInfo:
        """What is served."""
        return self._info

    async def info(self, model: str | None = None) -> ModelInfo:  # noqa: ARG002  # one model
        """What is served. Raises `ConnectError` when the engine has ended."""
        if failure := self.failure:
            raise failure
        return self._info

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel.submit`; the prompt must be token ids."""
        stream = _Stream(self._clamped(request), sink)
        stream.task = asyncio.get_running_loop().create_task(self._run(stream, f"lmtool-{next(self._numbers)}"))
        return stream

    async def _run(self, stream: _Stream, name: str) -> None:
        await asyncio.sleep(0)  # no output before `submit` has returned
        request = stream.request
        try:
            prompt = self._checked(request)
            if isinstance(request, ScoreRequest):
                await self._score(stream, request, prompt, name)
            else:
                await self._generate(stream, request, prompt, name)
        except asyncio.CancelledError:
            stream.put(TokenOutput(request.stream_id, finish_reason="cancelled"), force=True)
        except LmtoolError as problem:
            stream.put(failure(request.stream_id, problem))
        except Exception as problem:  # noqa: BLE001  # whatever vLLM raises ends this stream and no other
            refused = ServerError(f"vLLM refused or failed: {problem}", "see the server's log")
            stream.put(failure(request.stream_id, self.failure or refused))

    def _clamped(self, request: GenerateRequest | ScoreRequest) -> GenerateRequest | ScoreRequest:
        if isinstance(request, GenerateRequest):
            top = clamped(request.sampling.top_logprobs, self._info, self._max_logprobs)
            return replace(request, sampling=replace(request.sampling, top_logprobs=top))
        if request.top_logprobs is None:
            return request
        return replace(request, top_logprobs=clamped(request.top_logprobs, self._info, self._max_logprobs))

    def _checked(self, request: GenerateRequest | ScoreRequest) -> list[int]:
        scored_ids = request.scored if isinstance(request, ScoreRequest) else ()
        parts = (*request.prompt, *scored_ids)
        ids = [token for token in parts if isinstance(token, int)]
        size, context = self._info.vocab_size or 0, self._info.context_length or 0
        if len(ids) < len(parts):
            raise RequestError("the prompt must be token ids here", "tokenize the text first")
        if unknown := [token for token in ids if not 0 <= token < size]:
            raise UnknownTokenError(
                f"token id {unknown[0]} is not in the vocabulary of {self._info.model} (0 to {size - 1})"
            )
        if len(ids) + 1 > context:
            raise ContextOverflowError(
                f"{len(ids)} tokens leave no room: the context of {self._info.model} is {context}"
            )
        if not ids and self._info.bos_token_id is not None:
            return [self._info.bos_token_id]
        if not ids:
            raise RequestError(f"the prompt is empty and {self._info.model} has no bos token to start from")
        return ids

    async def _generate(self, stream: _Stream, request: GenerateRequest, prompt: list[int], name: str) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if request.sampling.max_tokens == 0:
            stream.put(TokenOutput(request.stream_id, finish_reason="length", usage=Usage(len(prompt), 0)))
            return
        words = sampling(request, self._info.eos_token_ids)
        async with self._held(request, name) as warnings:
            if holds(request):
                words |= holding(request, name)
            params = SamplingParams(**words, output_kind=RequestOutputKind.DELTA)
            count = 0
            async for answer in self._engine.generate({"prompt_token_ids": prompt}, params, name):
                part = answer.outputs[0]
                for index, token in enumerate(part.token_ids):
                    ended = part.finish_reason is not None and index == len(part.token_ids) - 1
                    own, best = self._logprobs(request, _alternatives(token, part.logprobs[index]), name, count)
                    count += 1
                    output = TokenOutput(request.stream_id, token, own, best)
                    cached = getattr(answer, "num_cached_tokens", 0) or 0
                    usage = Usage(len(prompt), count, cached)
                    stream.put(self._last(request, output, part.finish_reason, usage, warnings) if ended else output)
                if part.finish_reason is not None and not part.token_ids:
                    last = TokenOutput(request.stream_id)
                    stream.put(self._last(request, last, part.finish_reason, None, warnings))

    def _last(
        self,
        request: GenerateRequest,
        output: TokenOutput,
        finish_reason: str,
        usage: Usage | None,
        warnings: tuple[str, ...],
    ) -> TokenOutput:
        """An output as the one that ends its stream."""
        reason: FinishReason = "length" if finish_reason == "length" else "stop"
        own = output.token in request.sampling.stop_token_ids and output.token not in self._info.eos_token_ids
        stopped_by = output.token if own and reason == "stop" else None
        return replace(output, finish_reason=reason, usage=usage, warnings=warnings, stopped_by=stopped_by)

    @contextlib.asynccontextmanager
    async def _held(self, request: GenerateRequest, name: str) -> AsyncIterator[tuple[str, ...]]:
        """See to what holds a request, from before it begins; gives the warnings. Raises `LmtoolError`."""
        if not holds(request):
            yield ()
            return
        if self._guides is None:
            raise ConstraintError(
                "vLLM takes no logits processors while it speculates, so it cannot hold a stream to a constraint",
                "serve it without the option speculative_config",
            )
        async with self._guides.holding(request, name) as warnings:
            yield warnings

    def _logprobs(self, request: GenerateRequest, found: Alternatives, name: str, place: int) -> tuple[float, Best]:
        if self._guides is None or not holds(request):
            return logprobs(request.sampling, found)
        step = self._guides.step(name, place)
        if request.constraint is None:
            return logprobs(request.sampling, found)
        return constrained_logprobs(request.sampling, found, step)

    async def _score(self, stream: _Stream, request: ScoreRequest, prompt: list[int], name: str) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        count = len(request.scored)
        if not count:
            stream.put(TokenOutput(request.stream_id, finish_reason="stop", usage=Usage(len(prompt), 0)))
            return
        params = SamplingParams(**scoring(request), output_kind=RequestOutputKind.FINAL_ONLY)
        async for answer in self._engine.generate({"prompt_token_ids": prompt}, params, name):
            for place in range(len(prompt) - count, len(prompt)):
                token, told = prompt[place], answer.prompt_logprobs[place]
                # Nothing comes before the first id of an empty prompt: 0.0 stands there, as LMTP says.
                found = _alternatives(token, told) if told else Alternatives(token, {token: 0.0})
                own, best = scored(request, found)
                reason: FinishReason | None = "stop" if place == len(prompt) - 1 else None
                usage = Usage(len(prompt) - count, count) if reason else None
                stream.put(TokenOutput(request.stream_id, token, own, best, finish_reason=reason, usage=usage))


def _alternatives(token: int, told: Any) -> Alternatives:
    return Alternatives(token, {other: min(0.0, entry.logprob) for other, entry in told.items()})


@dataclass(eq=False)
class _Stream:
    """One running request, and the hold on it. vLLM cannot pause a stream: what comes meanwhile is kept here."""

    request: GenerateRequest | ScoreRequest
    sink: Sink
    task: asyncio.Task[None] | None = None
    paused: bool = False
    held: list[TokenOutput] = field(default_factory=list)
    ended: bool = False

    def cancel(self) -> None:
        """Abort it in the engine; vLLM does so when its generator is cancelled."""
        if self.task is not None and not self.ended:
            self.held.clear()
            self.task.cancel()

    def pause(self) -> None:
        """Keep outputs back."""
        self.paused = True

    def resume(self) -> None:
        """Hand over what was kept back, and go on."""
        self.paused = False
        if self.held:
            held, self.held = self.held, []
            asyncio.get_running_loop().call_soon(self._hand_over, held)

    def put(self, output: TokenOutput, *, force: bool = False) -> None:
        """Pass an output on, or keep it. force: also while paused."""
        if self.ended:
            return
        self.ended = output.last
        if self.paused and not force:
            self.held.append(output)
        else:
            self._hand_over([output])

    def _hand_over(self, outputs: Sequence[TokenOutput]) -> None:
        self.sink(outputs)
