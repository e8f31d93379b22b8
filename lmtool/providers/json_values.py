"""JSON of a peer, read with tolerance: what is not of the expected type counts as absent."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import msgspec

from lmtool.providers.answer_events import AnswerFailed, TokenUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DECODER = msgspec.json.Decoder()


def load(data: bytes) -> object:
    """The value of a JSON text, also of one with `NaN` and its like, or in broken UTF-8; None for anything else."""
    try:
        value: object = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return value


def object_of(value: object) -> Mapping[str, object]:
    """The value if it is an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> Sequence[object]:
    """The value if it is an array; an empty one for anything else."""
    return value if isinstance(value, list) else ()


def text_of(value: object) -> str:
    """The value if it is a string; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def count_of(value: object) -> int | None:
    """The value if it is a whole number from 0 on."""
    return value if type(value) is int and value >= 0 else None


def logprob_of(value: object) -> float | None:
    """The value if it is a finite number."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type] # a number


def usage_of(value: Mapping[str, object], prompt: str, completion: str) -> TokenUsage:
    """The counts of a usage object, whose members have these names."""
    details = object_of(value.get(f"{prompt}_details"))
    counts = (value.get(prompt), value.get(completion), details.get("cached_tokens"))
    return TokenUsage(*map(count_of, counts))


def failure_of(value: Mapping[str, object]) -> AnswerFailed | None:
    """The failure that an answer tells in place of what was asked for, in any server's form; None where it tells none.

    An `error` with type and message, or that is a text; vLLM's `message` of an object of kind `error`; FastAPI's
    `detail`.
    """
    error = value.get("error")
    if error is None and value.get("object") == "error":
        error = value
    if error is None and not (value.keys() & {"choices", "output", "content", "type"}):
        error = value.get("detail")
    if error is None:
        return None
    members = object_of(error)
    message = members.get("message")
    code = next((one for one in (members.get("code"), members.get("type")) if isinstance(one, str)), None)
    return AnswerFailed(message if isinstance(message, str) else _shown(error), code)


def _shown(error: object) -> str:
    return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
