"""Finished JSON, checked against its whole schema."""

from __future__ import annotations

import json
import time

import pytest

from lmtool.inference.guide.json_validation import TooManyStepsError, UncheckedError, examine, valid_values

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True}, "s": {"pattern": "^a+$"}},
    "patternProperties": {"^x": {"type": "null"}},
    "additionalProperties": False,
}


def violations(schema: object, text: str) -> tuple[str, ...]:
    """What is found, or why nothing could be checked."""
    try:
        return examine(json.dumps(schema), text, 50_000)
    except UncheckedError as problem:
        return (f"not checked: {problem}",)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [1, 2], "s": "aa", "xy": None}, None),
        ({"a": [1, 1]}, "non-unique"),
        ({"s": "ab"}, "does not match"),
        ({"s": 'é"\\'}, "does not match"),
        ({"x": 1}, "null"),
        ({"other": 1}, "other"),
        ([], "object"),
        ('{"x":null,"x":null}', "'x' occurs twice"),
        ('{"a":[{"b":1,"c":2,"b":1}]}', "'b' occurs twice"),
        ('{"a":[NaN]}', "NaN is not JSON"),
    ],
)
def test_found(value, sentence):
    """Each violation is a sentence; a valid text has none."""
    found = violations(SCHEMA, value if isinstance(value, str) else json.dumps(value))
    assert (sentence is None and found == ()) or sentence in found[0]


@pytest.mark.parametrize(
    ("schema", "text", "valid"),
    [
        ({"multipleOf": 0.01}, "1.13", True),
        ({"multipleOf": 0.01}, "1.131", False),
        ({"multipleOf": 3}, "9" * 6000, True),
        ({"multipleOf": 7}, "1e300", False),
        ({"exclusiveMaximum": 5}, "4.99999999999999999999999", True),
        ({"maximum": 5}, "5.00000000000000000000001", False),
        ({"type": "integer"}, "-" + "7" * 10_000, True),
        ({"type": "integer"}, "1.0", True),
        ({"type": "integer"}, "1.5", False),
        ({"type": "integer"}, "true", False),
        ({"type": "number"}, "1e999", True),
        ({"enum": [2.5]}, "2.50", True),
        ({"enum": [2.5]}, "2.51", False),
    ],
)
def test_numbers_are_exact(schema, text, valid):
    """They are taken as they are written, and not as the nearest float."""
    found = violations(schema, text)
    assert (found == ()) == valid, found
    assert "Decimal" not in str(found)


def test_work_is_counted():
    """A check that takes more steps than it may is given up, and says so."""
    schema = json.dumps({"items": {"type": "integer"}})
    assert examine(schema, "[1,2,3]", 10) == ()
    with pytest.raises(TooManyStepsError):
        examine(schema, "[1,2,3]", 2)


def test_valid_values():
    """In their order, numbers exact; a schema that is none, and too many steps for all together, are said."""
    values = [0.3, 0.1, 1, "a"]
    assert valid_values('{"type": "number", "multipleOf": 0.1}', values, 100) == [0.3, 0.1, 1]
    with pytest.raises(TooManyStepsError):
        valid_values('{"type": "number"}', values, 3)
    with pytest.raises(UncheckedError):
        valid_values('{"type": 1}', values, 100)


def test_drafts():
    """A schema is read as its own draft says."""
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    assert violations(schema, "1")
    assert not violations(schema, "2")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "https://example.org/x.json"}, "1"),
        ({"$ref": "file:///etc/passwd"}, "1"),
        ({"$ref": "#"}, "1"),
        ({"type": "nothing"}, "1"),
        ({"pattern": "(?=a)"}, '"a"'),
        ({"unevaluatedProperties": False}, "{}"),
        ({"pattern": "a"}, '"\\ud800"'),
        ({"multipleOf": 3}, "1e999999999"),
        ({}, "{"),
        ({}, "[" * 100_000),
    ],
)
def test_what_cannot_be_checked_is_told(schema, text):
    """Nothing is fetched, nothing ends in an exception: what could not be checked is said."""
    [told] = violations(schema, text)
    assert "not checked" in told or "not valid JSON" in told


def test_hostile_schemas_take_little_time():
    """Patterns that backtrack and alternatives that multiply end soon."""
    started = time.process_time()
    assert violations({"pattern": "^(a+)+$"}, json.dumps("a" * 40 + "b"))
    nested = {"properties": {"a": {"anyOf": [{"$ref": "#"}] * 4}}, "required": ["b"]}
    value: object = {}
    for _ in range(20):
        value = {"a": value}
    assert violations(nested, json.dumps(value))
    assert time.process_time() - started < 10
