"""Our requests in vLLM's words, and its answers in ours: plain values, so that both can be read without vLLM."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool import logits_processors as processors
from lmtool.cli.vllm.held import arguments
from lmtool.cli.vllm.scratch import KEY
from lmtool.constraint import written
from lmtool.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.cli.vllm.told import Step
    from lmtool.types import Constraint, GenerateRequest, SamplingParams, ScoreRequest

MOST_BIASED = 128
"""Ids of a `logit_bias` for which exact biased logprobs are told; vLLM looks up no more of them a token."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The logprobs of one position, in nats, before and without any bias."""

    chosen: int
    by_token: Mapping[int, float]


def sampling(request: GenerateRequest, eos: Iterable[int]) -> dict[str, Any]:
    """Keyword arguments for `vllm.SamplingParams`. Raises `RequestError` for what vLLM's engine cannot do."""
    params, constrained = request.sampling, request.constraint is not None
    if params.logprobs_mode == "processed":
        raise RequestError("this backend tells no processed logprobs", "ask for logprobs_mode raw or biased")
    told: dict[str, Any] = {
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
        # vLLM clamps a bias to 100 by itself; one without a limit would be refused.
        told["logit_bias"] = {token: max(-100.0, min(100.0, value)) for token, value in params.logit_bias.items()}
        if not constrained and _told_biased(params):
            told["logprob_token_ids"] = sorted(params.logit_bias)
    return told


def holds(request: GenerateRequest) -> bool:
    """Whether our own processor in vLLM has something to do for a request."""
    return request.constraint is not None or bool(request.logits_processors)


def holding(request: GenerateRequest, name: str) -> dict[str, Any]:
    """Further keyword arguments for a request that our processor holds. name: vLLM's for it."""
    params, constrained = request.sampling, request.constraint is not None
    told = arguments(
        name,
        constraint=constraint_text(request.constraint) if request.constraint is not None else None,
        processors=processors.written(request.logits_processors),
        min_tokens=params.min_tokens if constrained else 0,
        stop_ids=params.stop_token_ids if constrained else (),
        ignore_eos=params.ignore_eos and constrained,
        best=params.top_logprobs if constrained and params.logprobs_mode == "biased" else None,
    )
    return {"extra_args": {KEY: told}}


def constraint_text(constraint: Constraint) -> str:
    """A constraint as the engine's process reads it."""
    return json.dumps(written(constraint))


def constrained_logprobs(
    params: SamplingParams, found: Alternatives, step: Step
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The same as `logprobs` under a constraint, which moved all that it allows by the same amount."""
    if params.logprobs_mode != "biased":
        return logprobs(params, found)
    bias = max(-100.0, min(100.0, params.logit_bias.get(found.chosen, 0.0)))
    own = min(0.0, found.by_token[found.chosen] + bias + step.shift)
    return own, step.best if found.chosen in dict(step.best) else (*step.best, (found.chosen, own))


def _stop_ids(request: GenerateRequest, eos: Iterable[int]) -> set[int]:
    params = request.sampling
    eos_ends = request.constraint is not None or not params.ignore_eos  # it allows eos where its text may end
    return {*params.stop_token_ids, *(eos if eos_ends else ())}


def _told_biased(params: SamplingParams) -> bool:
    """Whether logprobs after the bias are wanted, and can be had exactly."""
    if params.logprobs_mode != "biased" or not params.logit_bias:
        return False
    if len(params.logit_bias) > MOST_BIASED:
        raise RequestError(
            f"this backend tells logprobs for at most {MOST_BIASED} biased ids, found {len(params.logit_bias)}",
            "bias fewer ids, or ask for logprobs_mode raw",
        )
    return True


def logprobs(params: SamplingParams, found: Alternatives) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The chosen id's logprob and the best alternatives with it, in the mode that was asked for.

    A bias moves mass between the biased ids and all others together, whose shape stays: the normalising constant is
    known from the biased ids alone.
    """
    shown = dict(found.by_token)
    if _told_biased(params):
        bias = {token: max(-100.0, min(100.0, value)) for token, value in params.logit_bias.items()}
        known = {token: math.exp(shown[token]) for token in bias if token in shown}
        rest = max(0.0, 1.0 - sum(known.values()))
        total = math.log(sum(mass * math.exp(bias[token]) for token, mass in known.items()) + rest)
        shown = {token: min(0.0, value + bias.get(token, 0.0) - total) for token, value in shown.items()}
    best = sorted(shown.items(), key=lambda entry: -entry[1])[: params.top_logprobs]
    if found.chosen not in dict(best):
        best.append((found.chosen, shown[found.chosen]))
    return shown[found.chosen], tuple(best)


def scoring(request: ScoreRequest) -> dict[str, Any]:
    """Keyword arguments for the run that scores a prompt; vLLM generates one token all the same."""
    top = request.top_logprobs or 0
    return {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top, "detokenize": False, "ignore_eos": True}


def scored(request: ScoreRequest, found: Alternatives) -> tuple[float, tuple[tuple[int, float], ...] | None]:
    """The logprob of one scored id, and its alternatives where they were asked for."""
    own = found.by_token[found.chosen]
    if request.top_logprobs is None:
        return own, None
    best = sorted(found.by_token.items(), key=lambda entry: -entry[1])[: request.top_logprobs]
    return own, tuple(best if found.chosen in dict(best) else [*best, (found.chosen, own)])


def option(text: str) -> Any:
    """A value of `--backend-option`: JSON where it is, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
