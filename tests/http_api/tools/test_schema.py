"""The schema of calls."""

from __future__ import annotations

import jsonschema
import pytest

from lmtool.http_api.tools.schema import MAX_CALLS, calls_schema, closed, moved

TREE = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/color"}, "next": {"$ref": "#"}, "$ref": {"const": {"$ref": "#"}}},
    "required": ["value"],
    "$defs": {"color": {"enum": ["red"]}},
}


def test_references_go_on_to_mean_the_same() -> None:
    """A tool's schema refers to its own parts and to itself, wherever it stands; data are no references."""
    schema = calls_schema([("a", TREE), ("b", {"type": "object"})], parallel=True)
    good = [{"name": "a", "parameters": {"value": "red", "next": {"value": "red"}, "$ref": {"$ref": "#"}}}]
    jsonschema.validate(good, schema)
    for bad in ({"value": "blue"}, {"value": "red", "next": {}}, {"value": "red", "$ref": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{"name": "a", "parameters": bad}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], schema)


def test_how_many() -> None:
    """One call where they may not be parallel, else within a bound."""
    assert calls_schema([("a", {})], parallel=False)["maxItems"] == 1
    assert calls_schema([("a", {})], parallel=True)["maxItems"] == MAX_CALLS


def test_a_schema_with_an_id_is_its_own_document() -> None:
    """References are relative to it already."""
    own = {"$id": "x:y", "$ref": "#/$defs/a"}
    assert moved(own, "#/z") == own


def test_objects_are_closed() -> None:
    """Where nothing is said of further properties, there are none, at any depth; what is said stays."""
    given = {"properties": {"a": {"items": {"properties": {}}}, "b": {"properties": {}, "additionalProperties": True}}}
    assert closed(given) == {
        "properties": {
            "a": {"items": {"properties": {}, "additionalProperties": False}},
            "b": {"properties": {}, "additionalProperties": True},
        },
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"x": {"properties": {}, "$ref": "#/$defs/a"}}},
        {"patternProperties": {"a": {}}, "properties": {}},
        {"enum": [{"properties": {}}]},
    ],
)
def test_what_is_not_closed(schema: dict[str, object]) -> None:
    """Objects that are looked at from several sides, and data."""
    assert closed(schema) == schema
