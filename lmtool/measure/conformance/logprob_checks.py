"""What can be expected of a server's logprobs and alternatives: each check yields a sentence for everything wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeGuard

from lmtool.measure.conformance.transcript import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.measure.conformance.transcript import Transcript

    _Problems = Iterator[str]

_ROUNDING = 1e-3
"""By how much a logprob that should be 0, or a sum that should be 1, may be off."""


def alternatives(log: Transcript, *, of: object, least: int, most: int) -> _Problems:
    """Each token has that number of `top_logprobs`, ids as strings, the chosen one among them."""
    for i, entry in enumerate(log.tokens(of)):
        top = entry.get("top_logprobs")
        if not isinstance(top, dict) or not least <= len(top) <= most:
            actual = len(top) if isinstance(top, dict) else short(top)
            yield f"token {i} of stream {of}: {actual} alternatives; expected {least} to {most}"
            return
        if str(entry["token"]) not in top:
            yield f"token {i} of stream {of}: the chosen {entry['token']} is not in top_logprobs {short(top)}"
            return


def best_first(log: Transcript, *, of: object) -> _Problems:
    """`top_logprobs` are ordered from the most likely on."""
    for i, entry in enumerate(log.tokens(of)):
        values = [value for _, value in _top(entry)]
        if values != sorted(values, reverse=True):
            yield f"token {i} of stream {of}: top_logprobs are not in order: {short(values)}"
            return


def normalised(log: Transcript, *, of: object) -> _Problems:
    """Logprobs are at most 0, and the alternatives' probabilities sum to at most 1."""
    for i, entry in enumerate(log.tokens(of)):
        logprob, mass = entry.get("logprob"), sum(math.exp(min(value, 700.0)) for _, value in _top(entry))
        if not is_number(logprob) or logprob > _ROUNDING:
            yield f"token {i} of stream {of}: logprob {logprob} is no logarithm of a probability"
            return
        if mass > 1 + _ROUNDING:
            yield f"token {i} of stream {of}: the probabilities of {len(_top(entry))} alternatives sum to {mass:.3f}"
            return


def certain(log: Transcript, *, of: object) -> _Problems:
    """Every token has logprob 0."""
    for i, entry in enumerate(log.tokens(of)):
        logprob = entry.get("logprob")
        if not is_number(logprob) or abs(logprob) > _ROUNDING:
            yield f"token {i} of stream {of}: logprob {logprob}; expected 0, it was the only one allowed"
            return


def finite(log: Transcript, *, of: object) -> _Problems:
    """Logprobs and alternatives are finite numbers."""
    for i, entry in enumerate(log.tokens(of)):
        top = entry.get("top_logprobs", {})
        values = [entry.get("logprob"), *(top.values() if isinstance(top, dict) else ())]
        if not all(is_number(value) for value in values):
            yield f"token {i} of stream {of}: not every logprob is a finite number: {short(values)}"
            return


def _top(entry: Mapping[str, object]) -> list[tuple[str, float]]:
    top = entry.get("top_logprobs")
    return [(k, float(v)) for k, v in top.items() if is_number(v)] if isinstance(top, dict) else []


def is_number(value: object) -> TypeGuard[float]:
    """True if a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
