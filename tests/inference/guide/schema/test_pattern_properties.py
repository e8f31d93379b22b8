"""Patterns of names of which one may match what another one matches."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.guide.schema.pattern_properties import matches_all
from tests.inference.guide.following import accepts, compact, compiled_schema

INTEGER: dict[str, Any] = {"type": "integer"}
VALUES: list[Any] = [
    {}, {"a": 1}, {"a": "x"}, {"a": 20}, {"b": 1}, {"b": "x"}, {"ab": 1}, {"ab": 20}, {"x1": 1}, {"x1": "x"}, {"n": 1},
    {"n": 20}, {"n": "x"}, {"n": None}, {"ab": "x", "n": None},
]  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {".*": INTEGER, "^a": {"maximum": 10}}},
        {"patternProperties": {"": {"type": ["integer", "string"]}, "a": INTEGER}, "additionalProperties": False},
        {"patternProperties": {"^(a|b|n)$": {"type": ["integer", "null"]}, "^[an]$": {"not": {"type": "null"}}}},
        {"patternProperties": {"^(a|n)$": {"maximum": 10}, "b": INTEGER}, "properties": {"a": INTEGER, "n": INTEGER}},
        {"patternProperties": {"a": INTEGER, "b": INTEGER}},
        {"patternProperties": {"[a-z]*": {"type": "string"}}, "properties": {"n": {"type": ["string", "null"]}}},
        {"patternProperties": {"^x": INTEGER, "a*": {"maximum": 10}}, "additionalProperties": {"type": "null"}},
    ],
)
def test_overlapping_patterns(backend: ConstraintBackend, schema: dict[str, Any]) -> None:
    """What each pattern asks of a name that it matches is held."""
    schema = {"type": "object", **schema}
    made = compiled_schema(backend, schema)
    assert isinstance(made, CompiledConstraint), made
    judge = jsonschema.Draft202012Validator(schema)
    valid = [value for value in VALUES if judge.is_valid(value)]
    assert 1 < len(valid) < len(VALUES)
    assert [value for value in VALUES if accepts(backend, made, compact(value))] == valid


CIRCLE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"kin": {"items": {"$ref": "#/$defs/leaf"}, "maxItems": 2, "type": "array", "title": "kin"}},
            "patternProperties": {
                ".*": {"type": "array", "maxItems": 3, "items": {"anyOf": [{"$ref": "#/$defs/node"}, {"enum": ["x"]}]}}
            },
        },
        "leaf": {"type": "object", "required": ["a"]},
    },
}


def test_arrays_in_circles(backend: ConstraintBackend) -> None:
    """Items that must be of several schemas, which lead back to where they are, are held."""
    made = compiled_schema(backend, CIRCLE)
    assert isinstance(made, CompiledConstraint), made
    judge = jsonschema.Draft202012Validator(CIRCLE)
    kin: list[Any] = [{"a": []}, {"a": ["x"]}, {"a": [{}]}, {"a": ["y"]}, {}, "x", {"a": [{"kin": [{}]}]}]
    values = [{"kin": [one]} for one in kin] + [{"b": [one]} for one in kin]
    values += [{"kin": [{"a": []}] * 2}, {"kin": [{"a": []}] * 3}, {"b": ["x"] * 3}, {"b": ["x"] * 4}]
    valid = [value for value in values if judge.is_valid(value)]
    assert 5 < len(valid) < len(values)
    assert [value for value in values if accepts(backend, made, compact(value))] == valid


@pytest.mark.parametrize("pattern", ["", ".*", "^.*", "a*", "^[a-z]*", "^[\\s\\S]{0,}$", "(?:a|b?)", "^.*$"])
def test_matches_all(pattern: str) -> None:
    """What is found in every name."""
    assert matches_all(pattern)


@pytest.mark.parametrize("pattern", [".+", "a", "^$", "a*$", "^a*$", "[", "(?!a)", "\\b", "^[\\s\\S]{1,}$"])
def test_does_not_match_all(pattern: str) -> None:
    """What some names do not have, or may not have."""
    assert not matches_all(pattern)
