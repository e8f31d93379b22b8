"""Checks of a request's ids, numbers and length. No torch: vLLM workers use the same checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lmtool.core.errors import RequestError, UnknownTokenError
from lmtool.core.logit_bias import PackedBias
from lmtool.core.prompt_limits import PromptLimits, check_allowed_length
from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS, wrong_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest

MAX_LOGPROBS = 256
"""Default limit of a token's alternatives."""


def bias_arrays(bias: Mapping[int, float]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids and nats of a bias; those of a packed one are its own.

    By numpy: the event loop looks at them, and torch would share the work with threads that wait for each other.
    """
    if isinstance(bias, PackedBias):
        return np.frombuffer(bias.token_ids, np.int64), np.frombuffer(bias.nats, np.float64)
    return np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float64, len(bias))


def clamp_logprobs(top_logprobs: int, info: ModelInfo, limit: int | None = None) -> int:
    """Number of alternatives for a token if this many are requested: LMQL's clients request thousands.

    limit: the server's, `EngineConfig.max_logprobs`.
    """
    limit = MAX_LOGPROBS if limit is None else limit
    return min(top_logprobs, limit, info.vocab_size or limit)


def validate_generate(request: GenerateRequest, info: ModelInfo) -> list[int]:
    """The ids to start from: the prompt, or the model's bos id for an empty one.

    A prompt must leave room for one token. If only `max_tokens` goes beyond the context, the stream runs and ends
    with `length` where the context does. Raises `RequestError`.
    """
    check_allowed_length(request)
    limits = PromptLimits.of(info)
    if limits is not None:
        limits.check(request)
    prompt = _ids(request.prompt, "prompt")
    _validate_ids(prompt, "prompt", info)
    if not prompt:
        if info.bos_token_id is None:
            raise RequestError(
                f"the prompt is empty and {info.model} has no bos token to start from", "send at least one token id"
            )
        prompt = [info.bos_token_id]
    _validate_sampling(request.sampling, info)
    _validate_generated(request, info)
    _validate_ids(request.logprob_token_ids, "logprob_token_ids", info)
    return prompt


def _validate_generated(request: GenerateRequest, info: ModelInfo) -> None:
    """Check the number and the ids of `generated`."""
    count, most = len(request.generated), request.sampling.max_tokens
    if request.prefill_only or not count:
        return
    if count > most:
        raise RequestError(
            f"generated has {count} ids, more than max_tokens allows, which is {most}",
            "send the max_tokens of the whole stream: these ids count towards it",
        )
    _validate_ids(request.generated, "generated", info)


def validate_score(request: ScoreRequest, info: ModelInfo) -> tuple[list[int], list[int]]:
    """The ids of prompt and scored text. Raises `RequestError`."""
    check_allowed_length(request)
    limits = PromptLimits.of(info)
    if limits is not None:
        limits.check(request)
    prompt, scored = _ids(request.prompt, "prompt"), _ids(request.scored, "scored")
    _validate_ids(prompt, "prompt", info)
    _validate_ids(scored, "scored", info)
    if request.top_logprobs is not None:
        _validate_range("top_logprobs", request.top_logprobs)
    return prompt, scored


def _ids(value: object, field: str) -> list[int]:
    """The value as token ids. Text and messages need a tokenizer, which the engine has not."""
    if isinstance(value, tuple | list) and all(issubclass(kind, int) for kind in set(map(type, value))):
        return list(value)
    raise RequestError(
        f"{field} must be a list of token ids: this model is served without a tokenizer", "tokenize the text first"
    )


def _validate_ids(ids: Collection[int], field: str, info: ModelInfo) -> None:
    size = info.vocab_size or 0
    if not ids:
        return
    if isinstance(ids, PackedBias):
        array, _ = bias_arrays(ids)
        valid = array.min() >= 0 and array.max() < size
    else:
        valid = min(ids) >= 0 and max(ids) < size
    if not valid:
        unknown = next(token for token in ids if not 0 <= token < size)
        raise UnknownTokenError(
            f"token id {unknown} in {field} is not in the vocabulary of {info.model} (0 to {size - 1})",
            "check that the client uses this model's tokenizer: lmtool info",
        )


def _validate_sampling(params: SamplingParams, info: ModelInfo) -> None:
    for name in NUMERIC_PARAMETERS:
        if name != "seed" or params.seed is not None:
            _validate_range(name, getattr(params, name))
    _validate_ids(params.logit_bias, "logit_bias", info)
    _validate_ids(params.stop_token_ids, "stop_token_ids", info)
    if np.isnan(bias_arrays(params.logit_bias)[1]).any():
        raise RequestError("logit_bias holds NaN; expected numbers")


def _validate_range(name: str, value: float) -> None:
    allowed = NUMERIC_PARAMETERS[name].engine
    if value not in allowed:
        raise RequestError(wrong_value(name, value, allowed))
