"""Objects whose names a schema does not list."""

from __future__ import annotations

import pytest

from lmtool.inference.guide.schema.open_names import LISTED, OpenNames, open_names

NUMBER = {"type": "integer"}
CLOSED = {"type": "object", "properties": {"a": NUMBER}, "additionalProperties": False}
LIST = {"type": "array", "items": NUMBER}


@pytest.mark.parametrize(
    "schema",
    [
        False,
        NUMBER,
        CLOSED,
        LIST,
        {"const": {"a": 1}},
        {"enum": [{"a": 1}, [1]]},
        {"anyOf": [CLOSED, {"type": "null"}]},
        {"oneOf": [CLOSED, LIST]},
        {"allOf": [{"required": ["a"]}, CLOSED], "type": "object"},
        {**CLOSED, "anyOf": [{"required": ["a"]}, {"minProperties": 0}]},
        {"$ref": "#/$defs/d", "$defs": {"d": {**CLOSED, "properties": {"next": {"$ref": "#/$defs/d"}}}}},
        {"type": "array", "items": {"$ref": "#/definitions/x y"}, "definitions": {"x y": CLOSED}},
        {"type": "array", "maxItems": 0},
    ],
)
def test_listed(schema):
    """All names are listed, however the parts are joined."""
    assert open_names(schema) == LISTED


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "array"},
        {"properties": {"a": NUMBER}},
        {**CLOSED, "properties": {"a": {}}},
        {**CLOSED, "properties": {"a": {"type": ["object", "null"]}}},
        {"anyOf": [CLOSED, {"type": "object"}]},
        {"allOf": [{"properties": {"a": {}}}, CLOSED]},
        {"type": "array", "prefixItems": [NUMBER], "items": {"type": "object"}},
        {"type": "array", "prefixItems": [{}], "items": False},
        {"type": "object", "additionalProperties": NUMBER},
        {"type": "object", "patternProperties": {"^x-": NUMBER}, "additionalProperties": False},
        {**CLOSED, "properties": {"a": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"type": "object"}}},
        {**LIST, "items": CLOSED, "contains": {"properties": {"a": {}}}},
    ],
)
def test_open(schema):
    """Somewhere an object may have others."""
    assert open_names(schema) == OpenNames(any=True)


@pytest.mark.parametrize("schema", [{"$ref": "https://example.org"}, {"$ref": "#a"}, {"allOf": [{"$ref": "#/x"}]}])
def test_not_certain(schema):
    """What cannot be followed may be open in any way."""
    assert open_names(schema) == OpenNames(any=True, may_run_out=True)


def test_patterns_that_leave_few():
    """They are told, and where they are too few."""
    few = {"type": "object", "patternProperties": {"^[ab]$": NUMBER}, "additionalProperties": False}
    assert open_names({**CLOSED, "properties": {"a": few}}) == OpenNames(any=True, may_run_out=True)
    assert open_names({"items": {**few, "minProperties": 3}, "type": "array"}).too_few
    assert not open_names({**few, "minProperties": 2}).too_few


def test_many_parts_end():
    """A schema of alternatives of alternatives is not followed for ever."""
    defs = {str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}] * 8} for at in range(14)} | {"14": CLOSED}
    assert open_names({"$ref": "#/$defs/0", "$defs": defs}).any
