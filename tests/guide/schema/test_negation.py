"""What does not match."""

from __future__ import annotations

import jsonschema
import pytest

from lmtool.guide.schema.document import Document, UnsupportedError
from lmtool.guide.schema.negation import conjunction, negation

VALUES = [None, True, False, 0, 1, 2, 1.5, "", "x", "xy", "y", [], [1], {}, {"a": 1}, {"b": 1}, {"a": "x", "b": 2}]


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


def test_closed_objects():
    """Where all names are known, a closed object is not another one by a property that only the other has."""
    closed = {"type": "object", "properties": {"a": True}, "additionalProperties": False}
    wider = {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False}
    assert negation(closed, wider, Document({})) == [{"type": "object", "required": ["b"]}]
    with pytest.raises(UnsupportedError, match="additionalProperties"):
        negation(closed, {"type": "object"}, Document({}))


@pytest.mark.parametrize(
    "schema", [{"multipleOf": 2}, {"items": {"type": "null"}}, {"const": [1]}, {"minimum": "1"}, {"format": "date"}]
)
def test_refused(schema):
    """What has no negation is refused; beside something that has one, it is left out and told."""
    with pytest.raises(UnsupportedError):
        negation(schema, True, Document({}))
    document = Document({})
    assert negation({"type": "string", **schema}, True, document)
    assert document.narrowed


def test_too_many_ways():
    """Ways that multiply beyond a limit are refused."""
    with pytest.raises(UnsupportedError):
        conjunction([[{"const": 1}, {"const": 2}]] * 10)
