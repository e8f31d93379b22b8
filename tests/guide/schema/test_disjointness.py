"""Proofs that two schemas exclude each other."""

from __future__ import annotations

import pytest

from lmtool.guide.schema.disjointness import are_disjoint
from lmtool.guide.schema.document import Document

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
        ({}, {"type": "null"}, False),
        (False, {}, True),
    ],
)
def test_are_disjoint(one, other, proven):
    """What is proven excludes each other, whichever comes first; what is not is left open."""
    document = Document(ROOT)
    assert are_disjoint(one, other, document) == are_disjoint(other, one, document) == proven
