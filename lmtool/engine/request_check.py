"""Tells whether a request can be served by a model at all, and in which words it is refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lmtool.engine.sampler import bias_arrays
from lmtool.errors import RequestError, UnknownTokenError
from lmtool.logit_bias import PackedBias
from lmtool.prompt_limits import PromptLimits

if TYPE_CHECKING:
    from collections.abc import Collection

    from lmtool.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest

MAX_TOP_LOGPROBS = 256

_RANGES = (
    ("max_tokens", 0, math.inf),
    ("min_tokens", 0, math.inf),
    ("top_k", 0, math.inf),
    ("top_logprobs", 0, MAX_TOP_LOGPROBS),
    ("temperature", -1e6, 1e6),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 1e-6, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
)
"""Field of `SamplingParams`, smallest and largest value."""


def check_generate(request: GenerateRequest, info: ModelInfo) -> list[int]:
    """The ids to start from: the prompt, or the model's bos id for an empty one.

    A prompt must leave room for one token. If only `max_tokens` goes beyond the context, the stream runs and ends
    with `length` where the context does. Raises `RequestError`.
    """
    limits = PromptLimits.of(info)
    if limits is not None:
        limits.check_prompt(request.prompt)
    prompt = _ids(request.prompt, "prompt")
    _check_vocabulary(prompt, "prompt", info)
    if not prompt:
        if info.bos_token_id is None:
            raise RequestError(
                f"the prompt is empty and {info.model} has no bos token to start from", "send at least one token id"
            )
        prompt = [info.bos_token_id]
    _check_sampling(request.sampling, info)
    return prompt


def check_score(request: ScoreRequest, info: ModelInfo) -> tuple[list[int], list[int]]:
    """The ids of prompt and scored text. Raises `RequestError`."""
    limits = PromptLimits.of(info)
    if limits is not None:
        limits.check(request)
    prompt, scored = _ids(request.prompt, "prompt"), _ids(request.scored, "scored")
    _check_vocabulary(prompt, "prompt", info)
    _check_vocabulary(scored, "scored", info)
    if request.top_logprobs is not None:
        _check_range("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)
    return prompt, scored


def _ids(value: object, field: str) -> list[int]:
    """The value as token ids. Text and messages need a tokenizer, which is not here."""
    if isinstance(value, tuple | list) and all(issubclass(kind, int) for kind in set(map(type, value))):
        return list(value)
    raise RequestError(
        f"{field} must be a list of token ids: this model is served without a tokenizer", "tokenize the text first"
    )


def _check_vocabulary(ids: Collection[int], field: str, info: ModelInfo) -> None:
    size = info.vocab_size or 0
    lowest, highest = _ends(ids)
    if not (lowest >= 0 and highest < size):
        unknown = next(token for token in ids if not 0 <= token < size)
        raise UnknownTokenError(
            f"token id {unknown} in {field} is not in the vocabulary of {info.model} (0 to {size - 1})",
            "check that the client uses this model's tokenizer: lmtool info",
        )


def _ends(ids: Collection[int]) -> tuple[int, int]:
    """The lowest and the highest id; 0 and -1, which every vocabulary holds, where there is none."""
    if isinstance(ids, PackedBias):
        array, _ = bias_arrays(ids)
        return int(array.min()), int(array.max())
    return (min(ids), max(ids)) if ids else (0, -1)


def _check_sampling(params: SamplingParams, info: ModelInfo) -> None:
    for name, low, high in _RANGES:
        _check_range(name, getattr(params, name), low, high)
    _check_vocabulary(params.logit_bias, "logit_bias", info)
    _check_vocabulary(params.stop_token_ids, "stop_token_ids", info)
    if np.isnan(bias_arrays(params.logit_bias)[1]).any():
        raise RequestError("logit_bias holds NaN; expected numbers")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        allowed = f"from {low:g} to {high:g}" if math.isfinite(high) else f"from {low:g} on"
        raise RequestError(f"{name} is {value}; expected a number {allowed}")
