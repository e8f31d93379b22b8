"""Finished JSON, checked against its whole schema."""

from __future__ import annotations

import json
import time

import pytest

from lmtool.guide.check import violations

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True}, "s": {"pattern": "^a+$"}},
    "patternProperties": {"^x": {"type": "null"}},
    "additionalProperties": False,
}


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
    ],
)
def test_found(value, sentence):
    """Each violation is a sentence; a valid text has none."""
    found = violations(json.dumps(SCHEMA), json.dumps(value))
    assert (sentence is None and found == ()) or sentence in found[0]


def test_drafts():
    """A schema is read as its own draft says."""
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    assert violations(json.dumps(schema), "1")
    assert not violations(json.dumps(schema), "2")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "https://example.org/x.json"}, "1"),
        ({"$ref": "file:///etc/passwd"}, "1"),
        ({"$ref": "#"}, "1"),
        ({"type": "nothing"}, "1"),
        ({"pattern": "(?=a)"}, '"a"'),
        ({"unevaluatedProperties": False}, "{}"),
        ({}, "{"),
        ({}, "[" * 100_000),
    ],
)
def test_what_cannot_be_checked_is_told(schema, text):
    """Nothing is fetched, nothing ends in an exception: what could not be checked is said."""
    [told] = violations(json.dumps(schema), text)
    assert "not checked" in told or "no JSON" in told


def test_hostile_schemas_take_little_time():
    """Patterns that backtrack and alternatives that multiply end soon."""
    started = time.process_time()
    assert violations(json.dumps({"pattern": "^(a+)+$"}), json.dumps("a" * 40 + "b"))
    nested = {"properties": {"a": {"anyOf": [{"$ref": "#"}] * 4}}, "required": ["b"]}
    value: object = {}
    for _ in range(20):
        value = {"a": value}
    assert violations(json.dumps(nested), json.dumps(value))
    assert time.process_time() - started < 10
