"""Our requests as vLLM's arguments, and its logprobs as ours: plain values, tested without vLLM."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lmtool.core.constraint import written as constraint_object
from lmtool.core.errors import RequestError
from lmtool.core.logits_processors import written
from lmtool.inference.backends.vllm.shared_directory import KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
    from lmtool.inference.backends.vllm.step_channel import StepReport, TopLogprobs

MARKS = "thought_marks"
"""Member of a constraint on its way to the engine: the marks of the thought before it."""
MAX_BIASED = 128
"""Ids of a `logit_bias` for which exact biased logprobs can be computed; vLLM looks up no more of them a token."""
BIAS_LIMIT = 100.0
"""Nats; vLLM clamps a bias to this by itself, and refuses an infinite one."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The logprobs of one position, in nats, before and without any bias."""

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
    """Whether our logits processor in vLLM has something to do for a request."""
    return constraint_json(request) is not None or bool(request.logits_processors)


def processor_arguments(request: GenerateRequest, request_id: str) -> dict[str, Any]:
    """Further keyword arguments for `vllm.SamplingParams`: what our processor makes a `RowState` from."""
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
    """A request's constraint, and the marks of the thought before it, as the engine's process reads them."""
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
    """Whether logprobs are those after the bias. Raises `RequestError` where these cannot be computed exactly."""
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


def option_value(text: str) -> Any:
    """A value of `--backend-option`: JSON where it is, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
