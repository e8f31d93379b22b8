"""Proofs about the instances of a schema: allowed values and disjointness."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.guide.schema.document import MAX_NODES, Document, UnsupportedError
from lmtool.inference.guide.schema.rewriting import rewrite
from lmtool.inference.guide.schema.satisfiability import allowed_values, are_disjoint
from tests.inference.guide.following import accepts, compact, compiled_schema

VALUES: list[Any] = [{"a": 1, "b": "x"}, {"a": "x"}, [1, 1], [1, 2], "ab", "b", 3, 4.5, None, True, {}, []]
BESIDE: list[dict[str, Any]] = [
    {"type": ["integer", "string"], "pattern": "^a", "minimum": 5},
    {"multipleOf": 1.5, "type": "number"},
    {"uniqueItems": True},
    {"contains": {"const": 1}, "minContains": 2},
    {"not": {"properties": {"a": {"type": "string"}}}},
    {"oneOf": [{"type": "object"}, {"required": ["a"]}, {"minItems": 1}]},
    {"if": {"type": "object"}, "then": {"required": ["b"]}, "else": {"type": "array"}},
    {"propertyNames": {"pattern": "^a"}, "patternProperties": {"^a": {"type": "string"}}},
    {"dependentRequired": {"a": ["b"]}, "maxItems": 0},
    {"const": 3.0},
]


@pytest.mark.parametrize("beside", BESIDE)
def test_each_value_is_judged(backend: ConstraintBackend, beside: dict[str, Any]) -> None:
    """Those that another validator finds valid, and no others, by every keyword; the stream may write just these."""
    judge = jsonschema.Draft202012Validator(beside)
    valid = [value for value in VALUES if judge.is_valid(value)]
    schema: dict[str, object] = {"enum": VALUES, **beside, "title": "kept"}
    if "const" not in beside:
        assert 0 < len(valid) < len(VALUES)
        assert rewrite(schema).schema == {"title": "kept", "enum": valid}
    made = compiled_schema(backend, schema)
    assert isinstance(made, CompiledConstraint)
    assert [value for value in VALUES if accepts(backend, made, compact(value))] == valid
    assert made.warnings == ()


def test_no_value_left() -> None:
    """Says so where every value is excluded."""
    done = rewrite({"properties": {"a": {"const": "x", "not": {"type": "string"}}}})
    assert done.schema == {"properties": {"a": False}}
    assert "none of the values" in done.impossible[0]


def test_schemas_that_others_refer_to_stay() -> None:
    """Definitions beside a value are rewritten and kept."""
    done = rewrite({"const": 1, "minimum": 1, "$defs": {"x": {"enum": [1, "a"], "type": "string"}}})
    assert done.schema == {"enum": [1], "$defs": {"x": {"enum": ["a"]}}}


@pytest.mark.parametrize(
    "beside",
    [
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$dynamicRef": "#x"}}},
        {"format": "date"},
        {"unevaluatedProperties": False},
        {"type": "no type"},
    ],
)
def test_what_the_node_alone_does_not_decide(beside: dict[str, object]) -> None:
    """References, annotations and what cannot be validated leave a node as it is."""
    assert allowed_values({"enum": [1, "a"], **beside}, Document(True)) is None


def test_values_that_a_part_lists() -> None:
    """A part of `allOf` may list them, and all others judge them."""
    node = {"allOf": [{"type": "array"}, {"enum": [[0], [False], "x"]}, {"not": {"const": [False]}}]}
    assert allowed_values(node, Document(True)) == [[0]]
    assert allowed_values({"allOf": [{"enum": ["x"]}, {"format": "date"}]}, Document(True)) is None
    assert rewrite({**node, "title": "kept"}).schema == {"title": "kept", "enum": [[0]]}


def test_no_values() -> None:
    """A node that lists none, and one whose list is no array."""
    assert allowed_values({"type": "string"}, Document(True)) is None
    assert allowed_values({"enum": "abc"}, Document(True)) is None


def test_dialect() -> None:
    """The document says in which dialect its parts are written."""
    old = Document({"$schema": "http://json-schema.org/draft-07/schema#"})
    assert allowed_values({"enum": [[1], ["a"]], "items": [{"type": "integer"}]}, old) == [[1]]


def test_work_is_bounded() -> None:
    """As many values as subschemas count; keywords over all values count together."""
    with pytest.raises(UnsupportedError, match="more than"):
        allowed_values({"enum": list(range(MAX_NODES + 1)), "minimum": 1}, Document(True))
    many = {"enum": [[0] * 100] * 201, "items": {"minimum": 0}}
    assert allowed_values(many, Document(True)) is None
    assert allowed_values(many | {"enum": [[0] * 100]}, Document(True)) == [[0] * 100]


A = {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]}
B = {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}
ROOT = {"$defs": {"a": A, "b": B, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("one", "other", "proven"),
    [
        ({"type": "string"}, {"type": "null"}, True),
        ({"type": "integer"}, {"type": "number"}, False),
        ({"const": 1}, {"const": 1.0}, False),
        ({"const": 1}, {"const": True}, True),
        ({"enum": ["a"]}, {"enum": ["b"]}, True),
        (A, B, True),
        ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, True),
        ({"allOf": [{"$ref": "#/$defs/a"}, {"title": "t"}]}, B, True),
        ({"anyOf": [A, {"type": "string"}]}, B, True),
        ({"anyOf": [A, {}]}, B, False),
        ({"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 2}, True),
        ({"maximum": 1}, {"minimum": 2}, False),
        ({"type": "string", "maxLength": 1}, {"type": "string", "minLength": 2}, True),
        (
            {"type": "object", "required": ["x"]},
            {"type": "object", "properties": {"y": {}}, "additionalProperties": False},
            True,
        ),
        ({"type": "object", "required": ["x"]}, {"type": "object", "properties": {"x": False}}, True),
        ({"required": ["x"]}, {"properties": {"x": False}}, False),
        ({"type": "object", "properties": A["properties"]}, {"type": "object", "properties": B["properties"]}, False),
        ({"type": "object", "required": ["x"]}, {"properties": {"x": False}}, True),
        (A, {"additionalProperties": {"type": "boolean"}}, True),
        (A, {"properties": {"x": {}}, "additionalProperties": {"type": "string"}}, False),
        (
            {"type": "object", "required": ["$x"]},
            {"patternProperties": {"^[^$]": {}}, "additionalProperties": False},
            True,
        ),
        (
            {"type": "object", "required": ["x"]},
            {"patternProperties": {"^[^$]": {}}, "additionalProperties": False},
            False,
        ),
        ({"type": "object", "required": ["x"]}, {"patternProperties": {"[": {}}, "additionalProperties": False}, False),
        ({"type": "object", "required": ["x", "y"]}, {"maxProperties": 1}, True),
        ({"type": "object", "minProperties": 2}, {"maxProperties": 1}, True),
        (
            {"allOf": [{"type": "object", "required": ["kind"]}, {"properties": {"kind": {"enum": ["ab", "b"]}}}]},
            {"properties": {"kind": {"pattern": "^a"}}, "allOf": [{"properties": {"kind": {"maxLength": 1}}}]},
            True,
        ),
        (
            {"enum": ["ab", 3]},
            {"anyOf": [{"pattern": "^b", "type": "string"}, {"minimum": 4, "type": "integer"}]},
            True,
        ),
        (
            {"enum": ["ab", 3]},
            {"anyOf": [{"pattern": "^b", "type": "string"}, {"minimum": 3, "type": "integer"}]},
            False,
        ),
        ({"type": "string", "pattern": "^a+$"}, {"pattern": "^[^a]"}, True),
        ({"type": "string", "pattern": "^a"}, {"pattern": "b$"}, False),
        ({"type": "string", "pattern": "^a"}, {"pattern": "^a"}, False),
        ({"type": "string", "pattern": "^a"}, {"pattern": "^(?=b)"}, False),
        ({"pattern": "^a+$"}, {"pattern": "^[^a]"}, False),
        ({"enum": ["ab", "b"], "minLength": 2}, {"enum": ["ab", "b"], "pattern": "^b"}, True),
        ({"enum": ["ab", "b"], "pattern": "a"}, {"enum": ["ab", "b"], "pattern": "b"}, False),
        ({}, {"type": "null"}, False),
        (False, {}, True),
    ],
)
def test_are_disjoint(one, other, proven):
    """What is proven excludes each other, whichever comes first; what is not is left open."""
    document = Document(ROOT)
    assert are_disjoint(one, other, document) == are_disjoint(other, one, document) == proven


def test_beside() -> None:
    """What is known of all instances counts: that a property is there, in which the schemas differ."""
    document = Document({})
    one, other = ({"properties": {"kind": {"const": name}}} for name in "ab")
    assert not are_disjoint(one, other, document, {"type": "object"})
    assert are_disjoint(one, other, document, {"type": "object", "required": ["kind"]})
