"""vLLM's engine as a `TokenModel`; runs in vLLM's environment and imports nothing of it at module level."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.core.constraint import written as constraint_object
from lmtool.core.errors import (
    ConnectError,
    ConstraintError,
    ContextOverflowError,
    LmtoolError,
    RequestError,
    ServerError,
)
from lmtool.core.logits_processors import Processors, written
from lmtool.core.streams import failure
from lmtool.core.types import FinishReason, GenerateRequest, ModelInfo, ScoreRequest, TokenOutput, Usage
from lmtool.inference.backends.vllm.shared_directory import KEY, MARKS, EngineSettings, error_from
from lmtool.inference.engine.request_checks import clamp_logprobs, validate_generate, validate_score

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from lmtool.core.interfaces import Sink, StreamHandle
    from lmtool.core.types import ModelInfo, SamplingParams
    from lmtool.inference.backends.vllm.shared_directory import StepReceiver, StepReport, TopLogprobs


MAX_BIASED = 128
"""Largest `logit_bias` with exact biased logprobs; vLLM looks up no more ids per token."""
BIAS_LIMIT = 100.0
"""Largest bias in nats; vLLM clamps to it, and refuses infinite ones."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Logprobs of one position in nats, without any bias."""

    chosen: int
    by_token: Mapping[int, float]


def sampling_arguments(request: GenerateRequest, eos: Iterable[int]) -> dict[str, Any]:
    """Keyword arguments for `vllm.SamplingParams`. Raises `RequestError` for what vLLM's engine cannot do."""
    params, constrained = request.sampling, request.constraint is not None
    if params.logprobs_mode == "processed":
        raise RequestError("this backend has no processed logprobs", "ask for logprobs_mode raw or biased")
    arguments: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "min_tokens": 0 if constrained else params.min_tokens,  # the constraint knows where a text may end
        "temperature": max(0.0, params.temperature),
        "top_p": params.top_p or 1e-9,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "seed": params.seed,
        "stop_token_ids": sorted(_stop_ids(request, eos)),
        "ignore_eos": True,  # eos ids are among the stop ids: vLLM has no tokenizer that would know them
        "logprobs": params.top_logprobs,
        "detokenize": False,
    }
    if params.logit_bias:
        arguments["logit_bias"] = _clamped_bias(params)
        if not constrained and _applies_bias(params):
            arguments["logprob_token_ids"] = sorted(params.logit_bias)
    return arguments


def needs_processor(request: GenerateRequest) -> bool:
    """True if a request needs lmtool's logits processor in vLLM."""
    return constraint_json(request) is not None or bool(request.logits_processors)


def processor_arguments(request: GenerateRequest, request_id: str) -> dict[str, Any]:
    """Keyword arguments for `vllm.SamplingParams` from which the processor builds a `RowState`."""
    params, constrained = request.sampling, request.constraint is not None
    arguments = {
        "request_id": request_id,
        "constraint": constraint_json(request),
        "processors": written(request.logits_processors),
        "min_tokens": params.min_tokens if constrained else 0,
        "stop_ids": params.stop_token_ids if constrained else (),
        "ignore_eos": params.ignore_eos and constrained,
        "top_logprobs": params.top_logprobs if constrained and params.logprobs_mode == "biased" else None,
    }
    return {"extra_args": {KEY: json.dumps(arguments)}}


def constraint_json(request: GenerateRequest) -> str | None:
    """Constraint and thought marks of a request as JSON for the engine's process; None without either."""
    if request.constraint is None and request.thought_marks is None:
        return None
    members = {} if request.constraint is None else constraint_object(request.constraint)
    return json.dumps(members if request.thought_marks is None else {**members, MARKS: asdict(request.thought_marks)})


def _stop_ids(request: GenerateRequest, eos: Iterable[int]) -> set[int]:
    params = request.sampling
    eos_ends = request.constraint is not None or not params.ignore_eos  # a constraint allows eos where a text may end
    return {*params.stop_token_ids, *(eos if eos_ends else ())}


def _clamped_bias(params: SamplingParams) -> dict[int, float]:
    return {token: max(-BIAS_LIMIT, min(BIAS_LIMIT, value)) for token, value in params.logit_bias.items()}


def _applies_bias(params: SamplingParams) -> bool:
    """True if logprobs include the bias. Raises `RequestError` if they cannot be computed exactly."""
    if params.logprobs_mode != "biased" or not params.logit_bias:
        return False
    if len(params.logit_bias) > MAX_BIASED:
        raise RequestError(
            f"this backend has logprobs for at most {MAX_BIASED} biased ids, found {len(params.logit_bias)}",
            "bias fewer ids, or ask for logprobs_mode raw",
        )
    return True


def generated_logprobs(
    params: SamplingParams, position: PositionLogprobs, report: StepReport | None = None
) -> tuple[float, TopLogprobs]:
    """The chosen id's logprob and the best alternatives with it, in the request's mode.

    report: of the step, for a stream with a constraint, which shifts the logprobs of all that it allows alike. A bias
    moves mass between the biased ids and all others together, whose shape stays: the normalising constant follows from
    the biased ids alone.
    """
    by_token, chosen = dict(position.by_token), position.chosen
    if report is not None and params.logprobs_mode == "biased":
        own = min(0.0, by_token[chosen] + _clamped_bias(params).get(chosen, 0.0) + report.logprob_shift)
        return own, _with_chosen(report.top_logprobs, chosen, own)
    if report is None and _applies_bias(params):
        bias = _clamped_bias(params)
        biased = {token: math.exp(by_token[token]) for token in bias if token in by_token}
        rest = max(0.0, 1.0 - sum(biased.values()))
        total = math.log(sum(mass * math.exp(bias[token]) for token, mass in biased.items()) + rest)
        by_token = {token: min(0.0, value + bias.get(token, 0.0) - total) for token, value in by_token.items()}
    return by_token[chosen], _best(by_token, params.top_logprobs, chosen)


def scoring_arguments(request: ScoreRequest) -> dict[str, Any]:
    """Keyword arguments for `vllm.SamplingParams` that score a prompt; vLLM generates one token all the same."""
    top = request.top_logprobs or 0
    return {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top, "detokenize": False, "ignore_eos": True}


def scored_logprobs(request: ScoreRequest, position: PositionLogprobs) -> tuple[float, TopLogprobs | None]:
    """The logprob of one scored id, and its alternatives where the request asks for them."""
    own = position.by_token[position.chosen]
    if request.top_logprobs is None:
        return own, None
    return own, _best(position.by_token, request.top_logprobs, position.chosen)


def _best(by_token: Mapping[int, float], count: int, chosen: int) -> TopLogprobs:
    best = sorted(by_token.items(), key=lambda entry: -entry[1])[:count]
    return _with_chosen(tuple(best), chosen, by_token[chosen])


def _with_chosen(best: TopLogprobs, chosen: int, logprob: float) -> TopLogprobs:
    return best if chosen in dict(best) else (*best, (chosen, logprob))


_FIRST_POLL, _LAST_POLL = 0.002, 0.1
"""Seconds between polls for a compiled constraint, doubling; each takes a moment of the engine's time."""


class RemoteGuides:
    """Compiles constraints in the processes of an `AsyncLLM`. Belongs to the event loop in which it was made."""

    def __init__(self, engine: Any, steps: StepReceiver) -> None:
        """engine: made with `SharedDirectory.engine_options`."""
        self._engine = engine
        self.steps = steps

    async def describe(self, info: ModelInfo, tokenizer: str | None) -> None:
        """Send the model's settings to all processes of the engine, before the first request."""
        await self._engine.collective_rpc("lmtool_describe", args=(EngineSettings.of(info, tokenizer).to_json(),))

    @contextlib.asynccontextmanager
    async def constrain(self, request: GenerateRequest, request_id: str) -> AsyncIterator[tuple[str, ...]]:
        """Compile a request's constraint and receive its step reports meanwhile; yields the compiler's warnings.

        Raises `ConstraintError` for a constraint that cannot be compiled, `RequestError` for a processor that is not
        installed.
        """
        Processors(request.logits_processors)  # here an error is one of this request, not of the engine
        text = constraint_json(request)
        warnings = () if text is None else await self._compile(text)
        self.steps.subscribe(request_id)
        try:
            yield warnings
        finally:
            self.steps.unsubscribe(request_id)

    async def _compile(self, text: str) -> tuple[str, ...]:
        wait = _FIRST_POLL
        while True:
            outcomes = await self._engine.collective_rpc("lmtool_compile", args=(text,))
            if all(outcome is not None for outcome in outcomes):
                break
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LAST_POLL)
        for outcome in outcomes:
            if "error" in outcome:
                raise error_from(outcome["error"])
        return tuple(outcomes[0]["warnings"])


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
        """engine: a `vllm.v1.engine.async_llm.AsyncLLM` without a tokenizer. guides: constraints inside it.

        diagnose: why the engine has ended, once it has. max_logprobs: most alternatives that it gives a token.
        """
        self._engine = engine
        self._guides = guides
        self._info = replace(info, max_top_logprobs=clamp_logprobs(2**31, info, max_logprobs))
        self._diagnose = diagnose
        self._max_logprobs = max_logprobs
        self._numbers = itertools.count()

    @property
    def failure(self) -> ConnectError | None:
        """Error of an engine whose processes have ended, or None; the worker must end as well."""
        return self._diagnose() if self._engine.errored else None

    @property
    def info_now(self) -> ModelInfo:
        """The model's description."""
        return self._info

    async def info(self, model: str | None = None) -> ModelInfo:  # noqa: ARG002  # one model
        """The model's description. Raises `ConnectError` when the engine has ended."""
        if failure := self.failure:
            raise failure
        return self._info

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel.submit`; the prompt must be token ids."""
        stream = _Stream(self._clamped(request), sink)
        stream.task = asyncio.get_running_loop().create_task(self._run(stream, f"lmtool-{next(self._numbers)}"))
        return stream

    async def _run(self, stream: _Stream, request_id: str) -> None:
        await asyncio.sleep(0)  # no output before `submit` has returned
        request = stream.request
        try:
            if isinstance(request, ScoreRequest):
                await self._score(stream, request, request_id)
            else:
                await self._generate(stream, request, request_id)
        except asyncio.CancelledError:
            stream.put(TokenOutput(request.stream_id, finish_reason="cancelled"), force=True)
        except LmtoolError as problem:
            stream.put(failure(request.stream_id, problem))
        except Exception as problem:  # noqa: BLE001  # whatever vLLM raises ends this stream and no other
            refused = ServerError(f"vLLM refused or failed: {problem}", "see the server's log")
            stream.put(failure(request.stream_id, self.failure or refused))

    def _clamped(self, request: GenerateRequest | ScoreRequest) -> GenerateRequest | ScoreRequest:
        if isinstance(request, GenerateRequest):
            top = clamp_logprobs(request.sampling.top_logprobs, self._info, self._max_logprobs)
            return replace(request, sampling=replace(request.sampling, top_logprobs=top))
        if request.top_logprobs is None:
            return request
        return replace(request, top_logprobs=clamp_logprobs(request.top_logprobs, self._info, self._max_logprobs))

    async def _generate(self, stream: _Stream, request: GenerateRequest, request_id: str) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if request.prefill_only:
            raise RequestError("vLLM cannot compute a prompt alone", "send a request with max_tokens 1")
        if request.generated:
            raise RequestError("vLLM cannot go on with a stream, so it cannot have generated", "begin the stream again")
        if request.logprob_token_ids:
            raise RequestError("this backend has logprobs of the most likely ids only", "ask for top_logprobs")
        prompt = validate_generate(request, self._info)
        if request.sampling.max_tokens == 0:
            stream.put(TokenOutput(request.stream_id, finish_reason="length", usage=Usage(len(prompt), 0)))
            return
        arguments = sampling_arguments(request, self._info.eos_token_ids)
        if needs_processor(request):
            arguments |= processor_arguments(request, request_id)
        async with self._constraint(request, request_id) as warnings:
            params = SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA)
            count = 0
            async for answer in self._engine.generate(_prompt(prompt, request), params, request_id):
                part = answer.outputs[0]
                for index, token in enumerate(part.token_ids):
                    last = part.finish_reason is not None and index == len(part.token_ids) - 1
                    own, top = self._logprobs(request, _position(token, part.logprobs[index]), request_id, count)
                    count += 1
                    output = TokenOutput(request.stream_id, token, own, top)
                    if last:
                        usage = Usage(len(prompt), count, getattr(answer, "num_cached_tokens", 0) or 0)
                        output = self._last(request, output, part.finish_reason, usage, warnings)
                    stream.put(output)
                if part.finish_reason is not None and not part.token_ids:
                    output = TokenOutput(request.stream_id)
                    stream.put(self._last(request, output, part.finish_reason, None, warnings))

    def _last(
        self,
        request: GenerateRequest,
        output: TokenOutput,
        finish_reason: str,
        usage: Usage | None,
        warnings: tuple[str, ...],
    ) -> TokenOutput:
        """Complete the last output of a stream."""
        reason: FinishReason = "length" if finish_reason == "length" else "stop"
        own = output.token in request.sampling.stop_token_ids and output.token not in self._info.eos_token_ids
        stopped_by = output.token if own and reason == "stop" else None
        return replace(output, finish_reason=reason, usage=usage, warnings=warnings, stopped_by=stopped_by)

    def _constraint(
        self, request: GenerateRequest, request_id: str
    ) -> contextlib.AbstractAsyncContextManager[tuple[str, ...]]:
        """Context in which a request's constraint and processors are active; yields the warnings."""
        if not needs_processor(request):
            return contextlib.nullcontext(())
        if self._guides is None:
            raise ConstraintError(
                "vLLM takes no logits processors while it speculates, so it cannot apply a constraint",
                "serve it without the option speculative_config",
            )
        return self._guides.constrain(request, request_id)

    def _logprobs(
        self, request: GenerateRequest, position: PositionLogprobs, request_id: str, token_index: int
    ) -> tuple[float, TopLogprobs]:
        report = None
        if self._guides is not None and needs_processor(request):
            report = self._guides.steps.report(request_id, token_index)
        return generated_logprobs(request.sampling, position, None if request.constraint is None else report)

    async def _score(self, stream: _Stream, request: ScoreRequest, request_id: str) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt, scored = validate_score(request, self._info)
        if not scored:
            stream.put(TokenOutput(request.stream_id, finish_reason="stop", usage=Usage(len(prompt), 0)))
            return
        ids, context = [*prompt, *scored], self._info.context_length or 0
        if len(ids) + 1 > context:  # vLLM generates a token all the same
            raise ContextOverflowError.of(len(ids), context - 1, f"{context} tokens ({self._info.model})")
        params = SamplingParams(**scoring_arguments(request), output_kind=RequestOutputKind.FINAL_ONLY)
        async for answer in self._engine.generate(_prompt(ids, request), params, request_id):
            for place in range(len(prompt), len(ids)):
                token, entries = ids[place], answer.prompt_logprobs[place]
                # The first id of an empty prompt has no context: its logprob is 0.0, as LMTP says.
                position = _position(token, entries) if entries else PositionLogprobs(token, {token: 0.0})
                own, top = scored_logprobs(request, position)
                reason: FinishReason | None = "stop" if place == len(ids) - 1 else None
                usage = Usage(len(prompt), len(scored)) if reason else None
                stream.put(TokenOutput(request.stream_id, token, own, top, finish_reason=reason, usage=usage))


def _prompt(ids: list[int], request: GenerateRequest | ScoreRequest) -> dict[str, Any]:
    """Prompt in vLLM's form."""
    salted = {"cache_salt": request.cache_salt} if request.cache_salt else {}
    return {"prompt_token_ids": ids, **salted}


def _position(token: int, entries: Any) -> PositionLogprobs:
    return PositionLogprobs(token, {other: min(0.0, entry.logprob) for other, entry in entries.items()})


@dataclass(eq=False)
class _Stream:
    """A running request and its handle. vLLM cannot pause a stream, so outputs of a paused one are buffered."""

    request: GenerateRequest | ScoreRequest
    sink: Sink
    task: asyncio.Task[None] | None = None
    paused: bool = False
    buffer: list[TokenOutput] = field(default_factory=list)
    finished: bool = False

    def cancel(self) -> None:
        """Abort the request: vLLM does so when its generator is cancelled."""
        if self.task is not None and not self.finished:
            self.buffer.clear()
            self.task.cancel()

    def pause(self) -> None:
        """Buffer outputs."""
        self.paused = True

    def resume(self) -> None:
        """Deliver buffered outputs and stop buffering."""
        self.paused = False
        if self.buffer:
            outputs, self.buffer = self.buffer, []
            asyncio.get_running_loop().call_soon(self.sink, outputs)

    def put(self, output: TokenOutput, *, force: bool = False) -> None:
        """Deliver an output, or buffer it. force: also while paused."""
        if self.finished:
            return
        self.finished = output.last
        if self.paused and not force:
            self.buffer.append(output)
        else:
            self.sink([output])
