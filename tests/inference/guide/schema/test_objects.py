"""`propertyNames`, property counts and `patternProperties`."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.guide.schema.document import Document, UnsupportedError
from lmtool.inference.guide.schema.objects import matches_all, write_property_counts, write_property_names
from tests.inference.guide.following import accepts, compact, compiled_schema

CLOSED = {"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("names", "held", "node"),
    [
        (True, [], {}),
        (False, [{"maxProperties": 0}], {}),
        ({"type": "string"}, [], {}),
        ({"pattern": "^a"}, [], {"patternProperties": {"^a": True}, "additionalProperties": False}),
        ({"maxLength": 3}, [], {"patternProperties": {"^[\\s\\S]{0,3}$": True}, "additionalProperties": False}),
    ],
)
def test_names(names, held, node):
    """What names are allowed is said by patterns."""
    given = {"propertyNames": names}
    assert (write_property_names(given, Document({})), given) == (held, node)


def test_named_properties():
    """A list of names leaves these properties, each with what it may hold."""
    node = {
        "propertyNames": {"enum": ["a", "b"]},
        "properties": {"a": {"type": "null"}, "c": {}},
        "additionalProperties": {"type": "string"},
    }
    assert write_property_names(node, Document({})) == []
    assert node == {"properties": {"a": {"type": "null"}, "b": {"type": "string"}}, "additionalProperties": False}


def test_names_beside_properties():
    """A property is left out where its name does not match; others must match, unless there are none."""
    node = {"propertyNames": {"pattern": "^a"}, "properties": {"ab": {"type": "null"}, "b": {}}}
    closed = {**node, "additionalProperties": False}
    assert write_property_names(node, Document({})) == write_property_names(closed, Document({})) == []
    left = {"properties": {"ab": {"type": "null"}, "b": False}, "additionalProperties": False}
    assert closed == left
    assert node == {**left, "patternProperties": {"^a": True}}
    for beside in ({"patternProperties": {"b": {}}}, {"properties": {"a": {}}}):
        pattern = "a" if "patternProperties" in beside else "(?=a)"
        with pytest.raises(UnsupportedError, match="propertyNames"):
            write_property_names({"propertyNames": {"pattern": pattern}, **beside}, Document({}))


def test_counts():
    """At least and at most so many become the choices of which."""
    [least] = write_property_counts({**CLOSED, "minProperties": 2}, Document({}))
    assert least == {"anyOf": [{"required": ["a", "b"]}, {"required": ["a", "c"]}, {"required": ["b", "c"]}]}
    [most] = write_property_counts({**CLOSED, "maxProperties": 2}, Document({}))
    assert most == {"anyOf": [{"properties": {name: False}} for name in "abc"]}
    assert write_property_counts({**CLOSED, "maxProperties": 3}, Document({})) == []
    assert write_property_counts({**CLOSED, "required": ["a", "b"], "minProperties": 2}, Document({})) == []
    assert write_property_counts({**CLOSED, "minProperties": 4}, Document({})) == [False]
    assert write_property_counts({**CLOSED, "required": ["a", "b"], "maxProperties": 1}, Document({})) == [False]


def test_open_objects_are_narrowed():
    """Where any name may occur, only the named ones are used, and that is told."""
    document = Document({})
    node = {"properties": {"a": {}}, "minProperties": 1}
    assert write_property_counts(node, document) == [{"required": ["a"]}]
    assert node["additionalProperties"] is False
    assert document.narrowed


def test_counts_beside_others():
    """Others are counted where it is said of each property that may be left out whether it is there."""
    some = {"properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 2, "maxProperties": 3}
    ways = [{"required": [], "properties": {"b": False}}, {"required": ["b"], "properties": {}}]
    node = {**some, "patternProperties": {"^x": {}}}
    assert write_property_counts(node, Document({})) == [{"anyOf": ways}]
    assert (node["minProperties"], node["maxProperties"]) == (2, 3)
    [more] = write_property_counts({**some, "minProperties": 3}, Document({}))
    assert more == {"anyOf": ways}
    many = {"properties": {f"p{n}": {} for n in range(9)}, "patternProperties": {"^x": {}}, "maxProperties": 3}
    with pytest.raises(UnsupportedError, match="more than 4 optional"):
        write_property_counts(many, Document({}))


def test_fewer_names_than_needed():
    """Nothing matches, and why is known."""
    document = Document({})
    node = {"patternProperties": {"^a$": {}}, "additionalProperties": False, "minProperties": 2}
    assert write_property_counts(node, document) == [False]
    assert "'minProperties' is 2" in document.impossibilities[0]


def test_too_many_choices():
    """Choices beyond a limit are refused."""
    many = {"properties": {f"p{n}": {} for n in range(30)}, "additionalProperties": False, "minProperties": 10}
    with pytest.raises(UnsupportedError, match="minProperties"):
        write_property_counts(many, Document({}))


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
