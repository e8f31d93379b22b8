"""Sampling parameters that a person types: `name=value` words behind a prompt or an option, never evaluated."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from lmtool.core.errors import UsageError
from lmtool.core.sampling_parameters import DEADLINE, NUMERIC_PARAMETERS, wrong_value
from lmtool.core.types import LogprobsMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.sampling_parameters import Range

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TypedPrompt:
    """A prompt as typed, parsed."""

    text: str
    """The prompt without the parameters behind it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` and `deadline` by name, of the right types."""
    hint: str | None = None
    """A question about a word that looks like a misspelt parameter and stayed text."""


def split_prompt(text: str, *, compat_space: bool = False) -> TypedPrompt:
    """Take the parameters off the end of a prompt; the first other word from the right ends the scan.

    Spaces left at the prompt's end are dropped; `compat_space` leaves exactly one, as LMQL's own client does, so that
    token ids can be compared. Raises `UsageError` for a known name with a value it cannot have.
    """
    values: dict[str, Any] = {}
    rest, hint = text, None
    while words := rest.rsplit(None, 1):
        match = _ASSIGNMENT.fullmatch(words[-1])
        if match is None:
            break
        if match["name"] not in TYPED_PARAMETERS:
            hint = near_miss(words[-1])
            break
        values.setdefault(match["name"], read_value(match["name"], match["value"]))
        rest = words[0] if len(words) == 2 else ""
    return TypedPrompt(rest.rstrip(" ") + " " * compat_space, values, hint)


def parse_option(word: str) -> tuple[str, Any]:
    """Read the `name=value` of `-o`. Raises `UsageError` for an unknown name or a value it cannot have."""
    match = _ASSIGNMENT.fullmatch(word)
    if match is None:
        raise UsageError(f"-o {word}: expected name=value", "for example:  -o temperature=0.7")
    name = match["name"].replace("-", "_")
    if name not in TYPED_PARAMETERS:
        hint = near_miss(word)
        raise UsageError(
            f"-o {word}: no parameter is called {match['name']!r}",
            *([hint] if hint else []),
            f"parameters:  {', '.join(sorted(TYPED_PARAMETERS))}",
        )
    return name, read_value(name, match["value"])


def near_miss(word: str) -> str | None:
    """The question `did you mean ...?` for a `name=value` word whose name is close to a parameter's, or None."""
    import difflib

    name = word.partition("=")[0]
    close = difflib.get_close_matches(name.lower().replace("-", "_"), TYPED_PARAMETERS, n=1, cutoff=0.75)
    return f"did you mean {close[0]}={word.partition('=')[2]}?" if close else None


def read_value(name: str, raw: str) -> Any:
    """The value of a parameter: JSON, a bare word, or a number such as `.8`. Raises `UsageError`."""
    try:
        value = json.loads(f"0{raw}" if raw.startswith(".") else raw, parse_constant=int)
    except ValueError:
        value = raw
    try:
        return TYPED_PARAMETERS[name].read(raw, value)
    except (ValueError, OverflowError):
        raise UsageError(wrong_value(name, raw or "empty", TYPED_PARAMETERS[name].expected)) from None


def check_typed(name: str, value: Any) -> Any:
    """The value of an option such as `--top-p`, if the parameter accepts it. Raises `UsageError`."""
    for one in value if isinstance(value, tuple) else (value,):
        try:
            TYPED_PARAMETERS[name].read(str(one), one)
        except ValueError:
            option = name.replace("_", "-")
            raise UsageError(wrong_value(f"--{option}", repr(one), TYPED_PARAMETERS[name].expected)) from None
    return value


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Values of all `-o name=value` words; the last of a name wins."""
    return dict(parse_option(word) for word in words)


def apart(values: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Values that were typed: the fields of `SamplingParams` among them, and the request's deadline in seconds."""
    return {name: value for name, value in values.items() if name != "deadline"}, values.get("deadline")


@dataclass(frozen=True, slots=True)
class TypedParameter:
    """A parameter as a person types it."""

    read: Callable[[str, Any], Any]
    """Makes the field's value from its spelling and what JSON made of it; raises ValueError or OverflowError."""
    expected: str


def _number(allowed: Range) -> TypedParameter:
    def read(_raw: str, value: Any) -> float:
        if isinstance(value, float) and value.is_integer() and allowed.integer:
            value = int(value)
        if value not in allowed:
            raise ValueError
        return value if allowed.integer else float(value)

    return TypedParameter(read, str(allowed))


def _flag(_raw: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - the value is the user's, not a caller's
    return value


def _texts(raw: str, value: Any) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value if isinstance(value, str) else raw]
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    return tuple(texts)


def _ids(raw: str, value: Any) -> tuple[int, ...]:
    read = TYPED_PARAMETERS["top_k"].read  # any number from 0
    return tuple(int(read(raw, v)) for v in (value if isinstance(value, list) else [value]))


def _bias(raw: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the value is the user's, not a caller's
    ids, biases = TYPED_PARAMETERS["top_k"].read, TYPED_PARAMETERS["presence_penalty"].read
    return {int(ids(key, int(key))): float(biases(raw, bias)) for key, bias in value.items()}


def _mode(_raw: str, value: Any) -> str:
    if value not in get_args(LogprobsMode):
        raise ValueError
    return str(value)


TYPED_PARAMETERS: Mapping[str, TypedParameter] = {
    **{name: _number(parameter.prompt) for name, parameter in NUMERIC_PARAMETERS.items()},
    "logit_bias": TypedParameter(_bias, 'ids and numbers, such as {"11":-100}'),
    "stop": TypedParameter(_texts, 'a text or a list of texts, such as ["\\n"]'),
    "stop_token_ids": TypedParameter(_ids, "a token id or a list of them, such as [13,50256]"),
    "ignore_eos": TypedParameter(_flag, "true or false"),
    "logprobs_mode": TypedParameter(_mode, f"one of {', '.join(get_args(LogprobsMode))}"),
    "deadline": _number(DEADLINE),
}
"""The fields of `SamplingParams`, and the request's `deadline`, each with its reader."""
