"""Proofs that two schemas exclude each other."""

from __future__ import annotations

import pytest

from lmtool.inference.guide.schema.disjointness import are_disjoint
from lmtool.inference.guide.schema.document import Document

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
