"""The order of properties."""

from __future__ import annotations

from lmtool.inference.guide.schema.property_order import in_order

OWN = {"properties": {"b": {"type": "integer"}, "a": True}}
FIRST = {"properties": {"b": True, "a": True}}


def test_own_properties_come_first() -> None:
    """Before those of the schemas that a node is joined with, at every depth; data and plain nodes stay as they are."""
    branches = [{"properties": {"c": True}}]
    assert in_order({**OWN, "anyOf": branches}) == {**OWN, "anyOf": branches, "allOf": [FIRST]}
    assert in_order({"items": {**OWN, "allOf": branches}}) == {"items": {**OWN, "allOf": [FIRST, *branches]}}
    assert in_order({"$defs": {"x": {**OWN, "oneOf": branches}}}) == {
        "$defs": {"x": {**OWN, "oneOf": branches, "allOf": [FIRST]}}
    }
    for plain in (True, OWN, {"anyOf": branches}, {"const": {**OWN, "anyOf": branches}}, {"enum": [{**OWN, "if": {}}]}):
        assert in_order(plain) is plain
