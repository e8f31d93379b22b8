"""Schemas as grammars."""

from __future__ import annotations

import jsonschema
import pytest

from lmtool.guide.schema.document import UnsupportedError
from tests.guide.xgrammar.judging import allows, written

VALUES = [
    None,
    True,
    0,
    3,
    -1,
    1.5,
    "",
    "abc",
    "a@b.c",
    [],
    [1],
    [1, 2],
    ["x"],
    {},
    {"a": 1},
    {"a": "x"},
    {"a": {"a": 1}},
]
SCHEMAS = [
    {},
    {"type": ["string", "null"]},
    {"type": ["integer", "number"]},
    {"type": "boolean"},
    {"minimum": 1},
    {"enum": [None, "abc", 3]},
    {"enum": ["abc", 3, [1]], "type": "integer"},
    {"const": [1]},
    {"anyOf": [{"type": "string"}, {"minimum": 1, "type": "number"}]},
    {"type": "object", "anyOf": [{"required": ["a"]}, {"maxProperties": 0}], "properties": {"a": {"type": "integer"}}},
    {"allOf": [{"type": "array"}, {"maxItems": 1}]},
    {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
    {"type": ["object", "integer"], "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_what_is_valid_is_allowed(schema: dict[str, object]) -> None:
    """Exactly the valid values, of every type; numbers with a point where they have a bound have two digits."""
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        bound = "minimum" in str(schema) and isinstance(value, float)
        assert allows(schema, value) == (validator.is_valid(value) and not bound), value


@pytest.mark.parametrize(
    "keyword",
    ["not", "if", "oneOf", "uniqueItems", "contains", "propertyNames", "unevaluatedProperties", "$dynamicRef"],
)
def test_strict_schemas_are_refused_by_name(keyword: str) -> None:
    """A keyword that the grammar does not hold is named; deep inside as well."""
    with pytest.raises(UnsupportedError) as refused:
        written({"type": "array", "items": {keyword: [{}] if keyword == "oneOf" else {}}})
    assert refused.value.keyword == keyword


def test_lenient_schemas_tell_what_is_ignored() -> None:
    """What is not held is a warning, and all the rest is held."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 1}}, "not": {}}
    grammar, warnings = written(schema, strict=False)
    assert grammar is not None
    assert sorted(warning.split("'")[1] for warning in warnings) == ["not", "uniqueItems"]
    assert all(warning.endswith("and is ignored") for warning in warnings)
    assert allows(schema, {"a": [1]}, strict=False)
    assert not allows(schema, {"a": [1, 2]}, strict=False)


def test_lenient_within_a_type() -> None:
    """Of two keywords that cannot be held together one is left out, and told; `oneOf` becomes any of its branches."""
    string = {"type": "string", "pattern": "^a+$", "maxLength": 3}
    assert "maxLength" in written(string, strict=False)[1][0]
    assert allows(string, "aaaa", strict=False)
    assert not allows(string, "b", strict=False)
    one = {"type": "integer", "oneOf": [{"minimum": 3}, {"minimum": 5}]}
    assert allows(one, 7, strict=False)
    assert not allows(one, 1, strict=False)
    both = {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}
    assert "named twice" in written(both, strict=False)[1][0]
    assert allows(both, "c", strict=False)


def test_what_says_nothing_is_no_reason() -> None:
    """A keyword at the value that it has when it is absent is held by doing nothing."""
    assert allows({"type": "array", "uniqueItems": False}, [1, 1])


@pytest.mark.parametrize(
    "schema", [False, {"enum": []}, {"type": "integer", "minimum": 2, "maximum": 1}, {"allOf": [False]}]
)
def test_nothing(schema: object) -> None:
    """A schema that no value satisfies has no grammar."""
    assert written(schema)[0] is None  # type: ignore[arg-type]


def test_an_unknown_type() -> None:
    """Is named, also in lenient mode: it is no keyword to be left out."""
    with pytest.raises(UnsupportedError, match="'type'"):
        written({"type": "text"}, strict=False)
