"""What does not match."""

from __future__ import annotations

import math

import jsonschema
import pytest

from lmtool.inference.guide.schema.document import Document, UnsupportedError
from lmtool.inference.guide.schema.negation import conjunction, negation

VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    1.5,
    "",
    "x",
    "xy",
    "y",
    [],
    [1],
    [1, 1],
    {},
    {"a": 1},
    {"b": 1},
    {"a": "x", "b": 2},
]


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {"type": ["string", "null"]},
        {"type": "number"},
        {"const": "x"},
        {"enum": [None, True, "x", "", 1, 2]},
        {"required": ["a", "b"]},
        {"properties": {"a": {"type": "string"}}},
        {"type": "string", "minLength": 1, "maxLength": 1},
        {"minimum": 1},
        {"type": "object", "minProperties": 1},
        {"type": "array", "maxItems": 0},
        {"pattern": "^x"},
        {"pattern": "^(x|xy)$"},
        {"anyOf": [{"type": "string"}, {"required": ["a"]}]},
        {"allOf": [{"type": "object"}, {"required": ["a"]}]},
        {"not": {"type": "string"}},
        {"oneOf": [{"type": "string"}, {"const": "x"}]},
        {"if": {"type": "string"}, "then": {"const": "x"}, "else": {"type": "null"}},
        {"$ref": "#/$defs/s"},
        {"const": {}},
        {"const": []},
        {"contains": {"const": 1}},
        {"contains": {}},
        {"contains": {"const": 1}, "minContains": 2},
        {"contains": {"const": 1}, "minContains": 0, "maxContains": 1},
        {"contains": {"const": 1}, "minContains": 0},
    ],
)
def test_exact(schema):
    """The ways are matched by exactly what does not match the schema."""
    document = Document({"$defs": {"s": {"type": "string"}}})
    ways = negation(schema, True, document)
    assert not document.narrowed
    root = {"$defs": {"s": {"type": "string"}}}
    negated = jsonschema.Draft202012Validator({**root, "anyOf": ways} if ways else {"not": {}})
    plain = jsonschema.Draft202012Validator({**root, "allOf": [schema]})
    assert [value for value in VALUES if negated.is_valid(value) == plain.is_valid(value)] == []


def test_what_is_said_of_other_types():
    """Keywords that say nothing of the instances in question are no reason not to match."""
    schema = {"required": ["a"], "minLength": 1, "items": False, "minimum": 1, "properties": {"a": False}}
    assert negation(schema, {"type": ["null", "boolean"]}, Document({})) == []
    assert negation(schema, {"type": "integer"}, Document({})) == [{"type": "number", "exclusiveMaximum": 1}]
    assert negation(schema, {"type": "string"}, Document({})) == [{"type": "string", "maxLength": 0}]


def test_closed_objects():
    """Where all names are known, a closed object is not another one by a property that only the other has."""
    closed = {"type": "object", "properties": {"a": True}, "additionalProperties": False}
    wider = {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False}
    assert negation(closed, wider, Document({})) == [{"type": "object", "required": ["b"]}]
    with pytest.raises(UnsupportedError, match="additionalProperties"):
        negation(closed, {"type": "object"}, Document({}))


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 2},
        {"type": "integer"},
        {"items": {"type": "null"}},
        {"prefixItems": [{"type": "string"}, {"type": "null"}]},
        {"const": [1]},
        {"const": {"a": 1}},
        {"patternProperties": {"^a": {"type": "string"}}},
        {"propertyNames": {"maxLength": 0}},
        {"propertyNames": {"pattern": "^a$"}},
        {"pattern": "x.y"},
        {"pattern": "^[a-z]{2,3}$"},
        {"pattern": "^..$"},
        {"pattern": "^x(y|yy)?$"},
    ],
)
def test_some_ways(schema):
    """What only some ways are known for: they match nothing that matches the schema, and something else."""
    values = [
        *VALUES,
        2.5,
        7,
        -3,
        ["x"],
        ["x", None],
        [None],
        [None, "x"],
        "xAy",
        "abc",
        "abcd",
        "xyyy",
        {"ab": 1},
        {"aa": "x"},
    ]
    ways = negation(schema, {}, Document({}))
    plain, negated = (jsonschema.Draft202012Validator(one) for one in (schema, {"anyOf": ways}))
    assert [value for value in values if negated.is_valid(value) and plain.is_valid(value)] == []
    assert any(negated.is_valid(value) for value in values)


@pytest.mark.parametrize(
    "schema",
    [{"multipleOf": 0.1}, {"multipleOf": math.inf}, {"uniqueItems": True}, {"minimum": "1"}, {"format": "date"}],
)
def test_refused(schema):
    """What has no negation is refused; beside something that has one, it is left out and told."""
    with pytest.raises(UnsupportedError):
        negation(schema, True, Document({}))
    document = Document({})
    assert negation({"type": "string", **schema}, True, document)
    assert document.narrowed


def test_of_very_many_ways_some_are_used():
    """As many as can be written; a warning says so."""
    document = Document({})
    assert len(conjunction([[{"const": 1}, {"const": 2}]] * 10, document)) == 64
    assert document.narrowed
