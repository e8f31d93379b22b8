"""Tolerant access to JSON from a peer: a value of an unexpected type counts as absent."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DECODER = msgspec.json.Decoder()


def load(data: bytes) -> object:
    """Value of a JSON text, even with `NaN`, `Infinity` or broken UTF-8; None if it cannot be parsed."""
    try:
        value: object = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return value


def object_of(value: object) -> Mapping[str, object]:
    """The value if it is an object; otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> Sequence[object]:
    """The value if it is an array; otherwise an empty one."""
    return value if isinstance(value, list) else ()


def text_of(value: object) -> str:
    """The value if it is a string; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def count_of(value: object) -> int | None:
    """The value if it is a non-negative integer; otherwise None."""
    return value if type(value) is int and value >= 0 else None


def logprob_of(value: object) -> float | None:
    """The value if it is a finite number; otherwise None."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type] # a number
