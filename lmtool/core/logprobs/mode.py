"""Which distribution the logprobs of a request are of: two streams are comparable only where it is the same one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from lmtool.core.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import LogprobsMode, ScoreRequest

MEANINGS: Mapping[LogprobsMode, str] = {
    "raw": "the model's own",
    "biased": "after logit_bias and constraint",
    "processed": "after temperature, penalties and truncation",
}
_DEFAULTS = SamplingParams()
_SHAPES = ("top_k", "top_p", "min_p")
_CORRECTS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")


def logprobs_mode(payload: Mapping[str, object], *, biased: bool) -> LogprobsMode:
    """Which distribution the logprobs of a GENERATE are of: the earliest stage that has the same numbers.

    payload: its fields as LMTP has them. biased: whether it has a `logit_bias`, which the payload may lack.
    """
    requested = payload.get("logprobs_mode")
    if requested == "processed" and _is_shaped(payload):
        return "processed"
    changed = biased or any(payload.get(name) for name in ("logit_bias", "constraint"))
    return "biased" if changed and requested != "raw" else "raw"


def mode_of(request: GenerateRequest | ScoreRequest) -> LogprobsMode:
    """The mode of a request; SCORE has the model's own."""
    if not isinstance(request, GenerateRequest):
        return "raw"
    payload = {field.name: getattr(request.sampling, field.name) for field in fields(SamplingParams)}
    payload |= {"constraint": request.constraint, "logits_processors": request.logits_processors}
    return logprobs_mode(payload, biased=bool(request.sampling.logit_bias))


def _is_shaped(payload: Mapping[str, object]) -> bool:
    """True if what is drawn from is another distribution than the biased one."""
    temperature = payload.get("temperature")
    drawn = isinstance(temperature, int | float) and temperature > 0
    changed = {name for name in (*_SHAPES, *_CORRECTS) if _differs(payload, name)}
    if payload.get("logits_processors") or changed.intersection(_CORRECTS):
        return True
    return drawn and (temperature != 1 or bool(changed))


def _differs(payload: Mapping[str, object], name: str) -> bool:
    value = payload.get(name)
    return value is not None and value != getattr(_DEFAULTS, name)
