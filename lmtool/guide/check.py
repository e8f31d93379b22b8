"""Whether finished JSON is valid, also in what of its schema could not be held while it was generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from jsonschema.validators import extend, validator_for
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_KEYWORDS = 50_000
"""Most keywords that one check may look at: schemas of nested alternatives take exponential time otherwise."""

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]


class _UncheckedError(Exception):
    """Something that cannot be checked."""


def violations(schema_text: str, text: str) -> tuple[str, ...]:
    """Return why a text is not valid under a JSON Schema, one sentence each; nothing where it is valid.

    What cannot be checked is one of the sentences. Takes time in proportion to the text, whatever the schema: patterns
    are searched without backtracking, references beyond the schema are not followed, and the work is counted.
    """
    try:
        schema, value = json.loads(schema_text), json.loads(text)
        return tuple(f"at {error.json_path}: {_short(error.message)}" for error in _errors(schema, value))
    except (ValueError, RecursionError) as error:
        return (f"the text is no JSON that can be read: {_short(str(error))}",)
    except (_UncheckedError, SchemaError, UnknownType, Unresolvable) as error:
        return (f"the result was not checked: {_short(str(error))}",)


def _errors(schema: Any, value: Any) -> list[ValidationError]:  # noqa: ANN401  # any JSON
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    left = [MAX_KEYWORDS]
    keywords = {**kind.VALIDATORS, **_OWN}
    counted = {name: _counted(keyword, left) for name, keyword in keywords.items()}
    counting = extend(kind, counted)  # type: ignore[no-untyped-call]  # its stubs say nothing
    return list(counting(schema, registry=Registry()).iter_errors(value))


def _counted(keyword: Keyword, left: list[int]) -> Keyword:
    def counting(validator: Any, setting: Any, value: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ANN401
        left[0] -= 1
        if left[0] < 0:
            raise _UncheckedError(f"it takes more than {MAX_KEYWORDS} steps")
        yield from keyword(validator, setting, value, schema) or ()

    return counting


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if isinstance(value, str) and not _found(pattern, value):
        yield ValidationError(f"{_short(value)!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if not isinstance(value, dict):
        return
    for pattern, schema in patterns.items():
        for name, held in value.items():
            if _found(pattern, name):
                yield from validator.descend(held, schema, path=name, schema_path=pattern)


def _additional(validator: Any, held: Any, value: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in value.keys() - schema.get("properties", {}).keys():
        if not any(_found(pattern, name) for pattern in patterns):
            if held is False:
                yield ValidationError(f"the property {_short(name)!r} is not allowed")
            else:
                yield from validator.descend(value[name], held, path=name)


def _unevaluated(_: Any, __: Any, ___: Any, ____: Any) -> Iterator[ValidationError]:  # noqa: ANN401
    raise _UncheckedError("unevaluatedProperties is not supported")


_OWN: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "unevaluatedProperties": _unevaluated,
}
"""Keywords for which jsonschema would search with Python's `re`, which may take forever."""


def _found(pattern: str, text: str) -> bool:
    matcher = _searcher(pattern).deep_copy()
    tokens = list(json.dumps(text, ensure_ascii=False).encode())
    found = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    if not found and "satisfy" not in (problem := matcher.get_error()) and problem:
        raise _UncheckedError(f"{pattern!r}: {problem.splitlines()[0]}")
    return found


@lru_cache(maxsize=64)
def _searcher(pattern: str) -> LLMatcher:
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = LLMatcher(
        LLTokenizer("byte"),
        LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False}),
        log_level=0,
        limits=LLParserLimits(verbose_errors=False),
    )
    if matcher.is_error():
        raise _UncheckedError(f"the pattern {pattern!r} is not supported")
    return matcher


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."
