"""References whose targets are moved or copied mean the same, and can be compiled."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lmtool.inference.guide.dialects import in_2020_12
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.guide.schema.document import UnsupportedError
from lmtool.inference.guide.schema.references import joined
from tests.inference.guide.following import accepts, compact, compiled_schema

NODE: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LIST: dict[str, Any] = {
    "type": "object",
    "anyOf": [{"$ref": "#/definitions/list"}, {"$ref": "#/definitions/leaf"}],
    "definitions": {
        "list": {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["items"],
        },
        "leaf": NODE,
    },
}
RESOURCE: dict[str, Any] = {
    "$ref": "#/$defs/resource",
    "$defs": {
        "resource": {
            "type": "object",
            "additionalProperties": {"minProperties": 1, "anyOf": [{"type": "string"}, {"$ref": "#/$defs/resource"}]},
        }
    },
}
CHILD: dict[str, Any] = {
    "properties": {"top": {"$ref": "#/$defs/node"}},
    "required": ["top"],
    "additionalProperties": False,
    "type": "object",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"child": {"allOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/named"}]}},
            "additionalProperties": {"type": "string"},
        },
        "named": {"required": ["name"]},
    },
}
ELSEWHERE: dict[str, Any] = {
    "allOf": [{"type": "object"}, {"properties": {"a": {"$ref": "#/shapes/one"}, "b": {"$ref": "#/not/properties/c"}}}],
    "not": {"properties": {"c": {"type": "integer"}}, "required": ["c"]},
    "shapes": {"one": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}},
    "$defs": {"part0-0": {"type": "null"}},
}

CASES: list[tuple[dict[str, Any], list[Any]]] = [
    (LIST, [{"name": "x"}, {"items": [{"name": "x"}, {"items": []}]}, {"items": [{}]}, {"items": [{"name": 1}]}, {}]),
    (RESOURCE, [{}, {"a": "x"}, {"a": {"b": "x"}}, {"a": {}}, {"a": {"b": {}}}, {"a": 1}]),
    (
        CHILD,
        [{"top": {"child": {"name": "x"}}}, {"top": {}}, {"top": {"child": {}}}, {"top": {"child": {"name": 1}}}],
    ),
    (ELSEWHERE, [{}, {"a": 1}, {"a": 2.5}, {"a": 2}, {"a": 2.5, "b": 1}, {"b": "x"}, {"c": 1}, {"c": "x"}, []]),
]


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_circles_and_other_places(backend: ConstraintBackend, schema: dict[str, Any], values: list[Any]) -> None:
    """References in circles beside other keywords, and such to places that are no definitions, are held."""
    made = compiled_schema(backend, schema)
    assert isinstance(made, CompiledConstraint), made
    judge = jsonschema.Draft202012Validator(schema)
    valid = [value for value in values if judge.is_valid(value)]
    assert 0 < len(valid) < len(values)
    assert [value for value in values if accepts(backend, made, compact(value))] == valid


@pytest.mark.parametrize(("schema", "values"), CASES)
def test_the_meaning_stays(schema: dict[str, Any], values: list[Any]) -> None:
    """Another implementation finds the same values valid, in each form."""
    for written in (in_2020_12(schema), joined(in_2020_12(schema))):
        assert isinstance(written, dict)
        judge, plain = jsonschema.Draft202012Validator(written), jsonschema.Draft202012Validator(schema)
        assert [judge.is_valid(value) for value in values] == [plain.is_valid(value) for value in values]


@pytest.mark.parametrize("dialect", ["draft-04", "draft-07"])
def test_keywords_beside_references_in_old_drafts(backend: ConstraintBackend, dialect: str) -> None:
    """They mean nothing (JSON Schema draft-07, Core, 8.3), but where `$ref` is a name or data."""
    schema = {
        "$schema": f"http://json-schema.org/{dialect}/schema#",
        "definitions": {"number": {"type": ["number", "object"]}},
        "properties": {"a": {"$ref": "#/definitions/number", "type": "string"}, "$ref": {"type": "string"}},
        "additionalProperties": {"enum": [{"$ref": "x", "type": "y"}]},
    }
    made = compiled_schema(backend, schema)
    assert accepts(backend, made, '{"a":1,"$ref":"x","b":{"$ref":"x","type":"y"}}')
    for text in ('{"a":"x"}', '{"$ref":1}', '{"b":{"$ref":"x"}}'):
        assert not accepts(backend, made, text)
    newer = compiled_schema(backend, {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    assert not accepts(backend, newer, '{"a":1}')


def test_what_stays_as_it_is() -> None:
    """Schemas without such references, or with references that lead nowhere."""
    for schema in (
        {"$ref": "#/$defs/a", "$defs": {"a": {"const": {"$ref": "#"}}}},
        {"anyOf": [{"$ref": "#/nope"}, {}]},
    ):
        assert in_2020_12(schema) is schema


def test_names_are_no_keywords() -> None:
    """A property may be called like a keyword, and its schema may have references."""
    schema = {"properties": {"enum": {"$ref": "#"}, "$ref": {"type": "string"}}, "additionalProperties": False}
    written = in_2020_12(schema)
    assert isinstance(written, dict)
    assert "$defs" in written
    judge = jsonschema.Draft202012Validator(written)
    assert judge.is_valid({"enum": {"$ref": "x"}})
    assert not judge.is_valid({"enum": {"$ref": 1}})


def test_circles_in_one_place() -> None:
    """A reference that leads back without a member between is refused."""
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "allOf": [{"$ref": "#/$defs/a"}]}}}
    with pytest.raises(UnsupportedError, match="same place"):
        joined(circle)
