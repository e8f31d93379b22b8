"""The one table of sampling parameters: what each does, and the values that each wire and a person may send."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from lmtool.core.errors import RequestError
from lmtool.core.types import LogprobsMode, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

PROMPT_MAX_TOKENS = 256
"""Default `max_tokens` of a prompt that a person types: LMTP's own 32 would cut most sentences."""


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers that a parameter may be; as text, what an error says was expected."""

    low: float = -math.inf
    high: float = math.inf
    integer: bool = False
    above: bool = False
    """True if the number must be greater than `low`."""

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low) and abs(value) < math.inf

    def __str__(self) -> str:
        kind = "a whole number" if self.integer else "a number"
        low, high = (f"{end:d}" if isinstance(end, int) else f"{end:.15g}" for end in (self.low, self.high))
        if self.high == math.inf:
            return "a finite number" if self.low == -math.inf else f"{kind} {'above' if self.above else 'from'} {low}"
        return f"{kind} above {low}, at most {high}" if self.above else f"{kind} from {low} to {high}"

    @property
    def meta(self) -> msgspec.Meta:
        """The bounds as msgspec's constraint, for `Annotated[float, ....meta]`."""
        import msgspec

        bounds: dict[str, Any] = {"gt" if self.above else "ge": self.low, "le": self.high}
        return msgspec.Meta(**{name: bound for name, bound in bounds.items() if math.isfinite(bound)})


@dataclass(frozen=True, slots=True)
class NumericParameter:
    """A field of `SamplingParams` that is a number, and the ranges in which each interface accepts it."""

    help: str
    engine: Range
    """What an engine can compute with; every other range but LMTP's is within it."""
    lmtp: Range
    """As SPEC.md has it."""
    openai: Range
    """The completions, chat and Responses APIs."""
    anthropic: Range
    prompt: Range
    """What a person may type: an answer of no tokens, or a negative temperature, is a slip of the hand."""


def _number(
    sentence: str,
    engine: Range,
    *,
    lmtp: Range | None = None,
    openai: Range | None = None,
    anthropic: Range | None = None,
    prompt: Range | None = None,
) -> NumericParameter:
    openai = openai or engine
    return NumericParameter(sentence, engine, lmtp or engine, openai, anthropic or openai, prompt or engine)


_COUNT = Range(0, 2**31 - 1, integer=True)
_POSITIVE_COUNT = Range(1, 2**31 - 1, integer=True)
_NATS = Range(-1e6, 1e6)
_FINITE = Range()
_SHARE = Range(0, 1)
_POSITIVE_SHARE = Range(0, 1, above=True)
_PENALTY = Range(-2, 2)

NUMERIC_PARAMETERS: Mapping[str, NumericParameter] = {
    "max_tokens": _number(
        "End the answer after this many tokens.", _COUNT, anthropic=_POSITIVE_COUNT, prompt=_POSITIVE_COUNT
    ),
    "temperature": _number(
        "Randomness of sampling; 0 always picks the most likely token.",
        _NATS,
        lmtp=_FINITE,
        openai=Range(0, 2),
        anthropic=_SHARE,
        prompt=Range(0, 1e6),
    ),
    "top_k": _number(
        "Sample from the k most likely tokens only; 0 means all.",
        _COUNT,
        openai=Range(-1, 2**31 - 1, integer=True),
        anthropic=_COUNT,
    ),
    "top_p": _number(
        "Sample from the most likely tokens that together reach this probability.",
        _SHARE,
        lmtp=_POSITIVE_SHARE,
        prompt=_POSITIVE_SHARE,
    ),
    "min_p": _number("Drop tokens below this fraction of the most likely token's probability.", _SHARE),
    "repetition_penalty": _number(
        "Make tokens of the prompt and the answer less likely; 1 changes nothing.",
        Range(1e-6, 1e6),
        lmtp=Range(0, above=True),
        openai=Range(0.01, 100),
    ),
    "presence_penalty": _number(
        "Subtract this from the logit of each token already generated.", _NATS, lmtp=_FINITE, openai=_PENALTY
    ),
    "frequency_penalty": _number(
        "Subtract this from a token's logit once per time it was generated.", _NATS, lmtp=_FINITE, openai=_PENALTY
    ),
    "seed": _number(
        "Seed of the random generator, for repeatable answers.",
        Range(-(2**63), 2**63 - 1, integer=True),
        prompt=Range(0, 2**63 - 1, integer=True),
    ),
    "min_tokens": _number("Do not end the answer before this many tokens.", _COUNT),
    "top_logprobs": _number("Alternatives to send with each token.", _COUNT),
}
"""The numbers of `SamplingParams`, in the order of its fields."""

PARAMETER_HELP: Mapping[str, str] = {
    **{name: parameter.help for name, parameter in NUMERIC_PARAMETERS.items()},
    "logit_bias": "Token ids and the nats to add to their logits.",
    "stop": "End the answer before this text; it is not part of the answer.",
    "stop_token_ids": "End the answer at these token ids.",
    "ignore_eos": "Continue past the model's end-of-sequence token.",
    "logprobs_mode": f"Distribution that logprobs are taken from: {', '.join(get_args(LogprobsMode))}.",
}
"""One sentence for each field of `SamplingParams`."""

DEFAULTS: Mapping[str, object] = {field.name: getattr(SamplingParams(), field.name) for field in fields(SamplingParams)}
"""LMTP's, by name."""


DEADLINE = Range(0, 86_400, above=True)
"""Seconds that a request may give itself: a day at most."""


def check_deadline(seconds: float | None) -> float | None:
    """The deadline that a caller gives; None: there is none. Raises `RequestError` for what cannot be one."""
    if seconds is not None and seconds not in DEADLINE:
        raise RequestError(wrong_value("deadline", seconds, f"{DEADLINE}, in seconds"))
    return seconds


def wrong_value(name: str, value: object, expected: object) -> str:
    """The sentence for a parameter's value that is not accepted."""
    return f"{name} is {value}; expected {expected}"
