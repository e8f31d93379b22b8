"""Validates JSON with jsonschema, independently of the library that constrains streams."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from lmtool.inference.guide.dialects import in_2020_12
from lmtool.inference.guide.patterns import PatternError, matches

_MOST_SENTENCES = 10
_MOST_EXPONENT = 5000
_CACHED_CHARACTERS = 16 * 1024

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]

_work = threading.local()
"""`steps_left`: remaining keyword evaluations of the validation that runs in this thread."""


class UncheckedError(Exception):
    """A schema or text that cannot be validated."""


class TooManyStepsError(UncheckedError):
    """A validation that takes more steps than allowed."""


def examine(schema_text: str, text: str, steps: int) -> tuple[str, ...]:
    """Return the reasons why a text is invalid under a JSON Schema or ambiguous JSON; empty if it is valid.

    steps: most keyword evaluations. Raises `TooManyStepsError` beyond that, and `UncheckedError` for schemas and texts
    that cannot be validated.
    """
    try:
        value = _read(text)
    except ValueError as error:
        return (f"the text is not valid JSON: {_short(str(error))}",)
    except RecursionError:
        raise UncheckedError("it is nested too deeply") from None
    with _judge(schema_text, steps) as validator:
        found = list(islice(validator.iter_errors(value), _MOST_SENTENCES))
    sentences = ((error.json_path, _NUMBER.sub(r"\1", error.message)) for error in found)
    return tuple(f"at {place}: {_short(sentence)}" for place, sentence in sentences)


def valid_values(schema_text: str, values: list[object], steps: int) -> list[object]:
    """Return the given values that are valid under a JSON Schema.

    steps: most keyword evaluations for all values together. Raises the errors of `examine`.
    """
    with _judge(schema_text, steps) as validator:
        exact = _read(json.dumps(values))
        return [value for value, same in zip(values, exact, strict=True) if validator.is_valid(same)]


@contextmanager
def _judge(schema_text: str, steps: int) -> Iterator[Any]:
    """Validator of a schema, limited to `steps`; its failures become `UncheckedError`."""
    _work.steps_left = steps
    validator = (_cached_validator if len(schema_text) < _CACHED_CHARACTERS else _validator)(schema_text)
    try:
        yield validator
    except (UnknownType, Unresolvable, RecursionError, ArithmeticError, TypeError, ValueError) as error:
        raise UncheckedError(_short(str(error))) from None


_NUMBER = re.compile(r"Decimal\('([^']*)'\)")


def _validator(schema_text: str) -> Any:  # noqa: ANN401  # jsonschema's classes are made as they are needed
    try:
        read = in_2020_12(json.loads(schema_text))
        Draft202012Validator.check_schema(read, FormatChecker(()))  # patterns are no Python's
        schema = in_2020_12(json.loads(schema_text, parse_float=Decimal))
    except (ValueError, RecursionError, SchemaError, UnknownType) as error:
        raise UncheckedError(_short(str(error))) from None
    keywords = {**Draft202012Validator.VALIDATORS, **_OWN}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
    return extend(Draft202012Validator, counted, type_checker=types)(schema, registry=Registry())  # type: ignore[no-untyped-call]


_cached_validator = lru_cache(maxsize=64)(_validator)


def _read(text: str) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON with exact numbers. Raises `ValueError`, also for a duplicate name in an object."""
    return json.loads(
        text,
        parse_int=lambda digits: int(Decimal(digits)),
        parse_float=_decimal,
        parse_constant=_constant,
        object_pairs_hook=_object,
    )


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise UncheckedError(f"{_short(text)} is beyond all bounds") from None


def _constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(members)
    if len(value) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in value if names.count(name) > 1)
        raise ValueError(f"the name {_short(twice)!r} occurs twice in one object")
    return value


def _is_integer(_: Any, value: Any) -> bool:  # noqa: ANN401  # any JSON
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


def _counted(keyword: Keyword) -> Keyword:
    def counting(validator: Any, setting: Any, value: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ANN401
        _work.steps_left -= 1
        if _work.steps_left < 0:
            raise TooManyStepsError("it takes too many steps")
        yield from keyword(validator, setting, value, schema) or ()

    return counting


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError(f"{_short(value)!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        for name, member in value.items():
            if _matches(pattern, name):
                yield from validator.descend(member, schema, path=name, schema_path=pattern)


def _additional(validator: Any, others: Any, value: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in value.keys() - schema.get("properties", {}).keys():
        if not any(_matches(pattern, name) for pattern in patterns):
            if others is False:
                yield ValidationError(f"the property {_short(name)!r} is not allowed")
            else:
                yield from validator.descend(value[name], others, path=name)


def _multiple_of(_: Any, unit: Any, value: Any, __: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return
    if isinstance(value, Decimal) and abs(value.adjusted()) > _MOST_EXPONENT:
        raise UncheckedError(f"{_short(str(value))} is beyond all bounds")
    if Fraction(value) % Fraction(unit):
        yield ValidationError(f"{_short(str(value))} is not a multiple of {unit}")


def _unevaluated(_: Any, __: Any, ___: Any, ____: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    raise UncheckedError("unevaluatedProperties is not supported")


_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "multipleOf": _multiple_of,
    "unevaluatedProperties": _unevaluated,
}
"""Replacements for jsonschema's keywords that search with Python's `re`, unbounded in time, or compute in floats."""


def _matches(pattern: str, text: str) -> bool:
    try:
        return matches(pattern, text)
    except PatternError as problem:
        raise UncheckedError(str(problem)) from None


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."
