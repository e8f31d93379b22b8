"""Which words of a prompt are parameters: trailing `name=value` words with a known name, never evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from lmtool.errors import UsageError
from lmtool.types import RANGES, LogprobsMode, Range, SamplingParams

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptWords:
    """A prompt as typed, taken apart."""

    text: str
    """What goes to the model."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` by name, of the right types."""
    hint: str | None = None
    """A question about a word that looks like a parameter and is not one; it stayed text."""


def split_prompt(text: str, *, compat_space: bool = False) -> PromptWords:
    """Take the parameters off the end of a prompt; the first other word from the right ends the scan.

    Spaces left at the prompt's end are dropped; `compat_space` leaves exactly one, as LMQL's own client does, so that
    token ids can be compared. Raises `UsageError` for a known name with a value it cannot have.
    """
    values: dict[str, Any] = {}
    rest, hint = text, None
    while words := rest.rsplit(None, 1):
        found = _ASSIGNMENT.fullmatch(words[-1])
        if found is None:
            break
        if found["name"] not in FIELDS:
            hint = near_miss(words[-1])
            break
        values.setdefault(found["name"], read_value(found["name"], found["value"]))
        rest = words[0] if len(words) == 2 else ""
    return PromptWords(rest.rstrip(" ") + " " * compat_space, values, hint)


def parse_option(word: str) -> tuple[str, Any]:
    """Read the `name=value` of `-o`. Raises `UsageError` for an unknown name or a value it cannot have."""
    match = _ASSIGNMENT.fullmatch(word)
    if match is None:
        raise UsageError(f"-o {word}: expected name=value", "for example:  -o temperature=0.7")
    name = match["name"].replace("-", "_")
    if name not in FIELDS:
        hint = near_miss(word)
        raise UsageError(
            f"-o {word}: no parameter is called {match['name']!r}",
            *([hint] if hint else []),
            f"parameters:  {', '.join(sorted(FIELDS))}",
        )
    return name, read_value(name, match["value"])


def near_miss(word: str) -> str | None:
    """Ask about a `name=value` word whose name is not known but close to one that is."""
    import difflib

    name = word.partition("=")[0]
    close = difflib.get_close_matches(name.lower().replace("-", "_"), FIELDS, n=1, cutoff=0.75)
    return f"did you mean {close[0]}={word.partition('=')[2]}?" if close else None


def read_value(name: str, raw: str) -> Any:
    """Value of a parameter from its spelling: JSON or a bare word. Raises `UsageError` when it does not fit."""
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except ValueError:
        value = raw
    try:
        return FIELDS[name].read(raw, value)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name}={raw}: expected {FIELDS[name].expected}",
            "to send it as text:  --literal",
            "in full:  -o name=value",
        ) from None


def sampling(base: SamplingParams, *layers: Mapping[str, Any]) -> SamplingParams:
    """Lay values over `base`, later layers over earlier ones; None means not said."""
    values = {f.name: getattr(base, f.name) for f in fields(SamplingParams)}
    for layer in layers:
        values.update({name: value for name, value in layer.items() if value is not None})
    return SamplingParams(**values)


@dataclass(frozen=True, slots=True)
class _Field:
    read: Callable[[str, Any], Any]
    """Makes the field's value from its spelling and what JSON made of it; raises ValueError."""
    expected: str


def _no_constant(word: str) -> float:
    raise ValueError(word)


def _within(allowed: Range) -> _Field:
    def read(_raw: str, value: Any) -> float:
        if isinstance(value, float) and value.is_integer() and allowed.whole:
            value = int(value)
        if value not in allowed:
            raise ValueError
        return value if allowed.whole else float(value)

    return _Field(read, str(allowed))


def _flag(_raw: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - the value is the user's, not a caller's
    return value


def _texts(raw: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        if not all(isinstance(v, str) and v for v in value):
            raise ValueError
        return tuple(value)
    text = value if isinstance(value, str) else raw
    if not text:
        raise ValueError
    return (text,)


def _ids(raw: str, value: Any) -> tuple[int, ...]:
    read = FIELDS["top_k"].read  # any number from 0
    return tuple(int(read(raw, v)) for v in (value if isinstance(value, list) else [value]))


def _bias(raw: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the value is the user's, not a caller's
    ids, biases = FIELDS["top_k"].read, FIELDS["presence_penalty"].read
    return {int(ids(key, int(key))): float(biases(raw, bias)) for key, bias in value.items()}


def _mode(_raw: str, value: Any) -> str:
    if value not in get_args(LogprobsMode):
        raise ValueError
    return str(value)


ASKED: Mapping[str, Range] = {
    **RANGES,
    "max_tokens": replace(RANGES["max_tokens"], low=1),
    "temperature": replace(RANGES["temperature"], low=0),
    "top_p": replace(RANGES["top_p"], above=True),
    "seed": replace(RANGES["seed"], low=0),
}
"""What a person may ask for: an answer of no tokens, or a heat below the coldest, is a slip of the hand."""

FIELDS: Mapping[str, _Field] = {
    **{name: _within(allowed) for name, allowed in ASKED.items()},
    "logit_bias": _Field(_bias, 'ids and numbers, such as {"11":-100}'),
    "stop": _Field(_texts, 'a text or a list of texts, such as ["\\n"]'),
    "stop_token_ids": _Field(_ids, "a token id or a list of them, such as [13,50256]"),
    "ignore_eos": _Field(_flag, "true or false"),
    "logprobs_mode": _Field(_mode, f"one of {', '.join(get_args(LogprobsMode))}"),
}
"""How each parameter that may stand in a prompt is read: the fields of `SamplingParams`."""


def check_typed(name: str, value: Any) -> Any:
    """The value of an option of its own, such as `--top-p`. Raises `UsageError` for one that it cannot have."""
    for one in value if isinstance(value, tuple) else (value,):
        try:
            FIELDS[name].read(str(one), one)
        except ValueError:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is {one!r}; expected {FIELDS[name].expected}") from None
    return value


def options(words: Sequence[str]) -> dict[str, Any]:
    """Values of all `-o name=value` words, later ones over earlier ones."""
    return dict(parse_option(word) for word in words)
