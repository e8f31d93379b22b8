"""Rewritten schemas: unsupported keywords, property order and references."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.dialects import in_2020_12
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.guide.schema.document import UnsupportedError
from lmtool.inference.guide.schema.rewriting import in_order, joined, rewrite
from tests.inference.guide.following import accepts, compact, compiled_schema

NAMES = ["a", "b", "c"]
VALUES: list[Any] = [None, True, False, 0, 1, 2, 1.5, "", "x", "xy", [], [1], ["x", "x"], {}, {"a": 1}, {"b": "x"}]
VALUES += [{"a": 1, "b": "x"}, {"a": "x", "b": 2, "c": None}, {"c": []}, [1, 2], ["x", 1, True], {"a": {"b": 1}}]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, "", "x", "xy"])

LEAVES = st.one_of(
    st.booleans(),
    st.builds(
        lambda kind: {"type": kind},
        st.sampled_from(["null", "boolean", "object", "array", "number", "integer", "string"]),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, SCALARS),
    st.builds(lambda names: {"required": names}, st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)),
    st.builds(lambda bound: {"minimum": bound}, st.integers(0, 2)),
    st.builds(lambda bound: {"type": "string", "maxLength": bound}, st.integers(0, 2)),
    st.builds(lambda bound: {"type": "object", "minProperties": bound}, st.integers(0, 2)),
    st.sampled_from([{"pattern": "^x$"}, {"pattern": "^x"}, {"type": "string", "format": "json-pointer"}]),
)


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Keywords that hold schemas, those among them that are rewritten."""
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    closed = st.builds(
        lambda properties, required: {
            "type": "object",
            "properties": properties,
            "required": [name for name in required if name in properties],
            "additionalProperties": False,
        },
        named,
        st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    )
    return st.one_of(
        st.builds(lambda schema: {"not": schema}, inner),
        st.builds(lambda schema: {"enum": VALUES, "not": schema}, inner),
        st.builds(lambda schemas: {"oneOf": schemas}, some),
        st.builds(lambda schemas: {"anyOf": schemas}, some),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, inner, inner, inner),
        st.builds(
            lambda name, schema: {"type": "object", "dependencies": {name: schema}}, st.sampled_from(NAMES), inner
        ),
        st.builds(lambda name: {"type": "object", "dependentRequired": {name: NAMES[:2]}}, st.sampled_from(NAMES)),
        st.builds(lambda schema: {"type": "array", "contains": schema}, inner),
        st.builds(lambda schema: {"type": "array", "items": schema, "uniqueItems": True}, inner),
        st.builds(lambda values: {"type": "object", "propertyNames": {"enum": values}}, st.just(NAMES[:2])),
        st.builds(lambda properties, least: {**properties, "minProperties": least}, closed, st.integers(0, 2)),
        st.builds(lambda properties, most: {**properties, "maxProperties": most}, closed, st.integers(0, 2)),
        st.builds(lambda node, schema: {**node, "oneOf": [schema, {"required": ["a"]}]}, closed, inner),
        st.builds(lambda properties: {"type": "object", "properties": properties}, named),
        closed,
    )


@given(st.recursive(LEAVES, nodes, max_leaves=5))
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_invalid_is_allowed(backend: ConstraintBackend, schema: Any) -> None:
    """What is allowed is valid for jsonschema; where nothing was narrowed, what is valid is allowed too."""
    compiled = compiled_schema(backend, schema)
    if isinstance(compiled, LmtoolError):
        return
    judge = jsonschema.Draft202012Validator(_whole(schema))
    for value in VALUES:
        if accepts(backend, compiled, compact(value)):
            assert judge.is_valid(value), value


def _whole(schema: Any) -> Any:
    """Read `dependencies` for jsonschema's latest draft, which has split it."""
    if isinstance(schema, list):
        return [_whole(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    read = {name: value if name in {"enum", "const"} else _whole(value) for name, value in schema.items()}
    if isinstance(dependencies := read.pop("dependencies", None), dict):
        read["dependentSchemas"] = dependencies
    return read


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"not": {"type": "string"}}, [None, True, {}, []], ["", "x"]),
        ({"type": "string", "not": {"enum": ["x", "xy"]}}, ["", "y", "xyz", "\n"], ["x", "xy"]),
        ({"type": "integer", "not": {"const": 1}}, [0, 2, -1, 10], [1]),
        ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
        (
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            [{"a": 1}, {"b": 1}],
            [{}, {"a": 1, "b": 1}],
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}},
            [{}, {"b": 1}, {"a": 1, "b": 1}],
            [{"a": 1}],
        ),
        (
            {
                "type": "object",
                "properties": {"k": {"enum": ["n", "s"]}, "v": {}},
                "required": ["k", "v"],
                "if": {"properties": {"k": {"const": "n"}}},
                "then": {"properties": {"v": {"type": "integer"}}},
                "else": {"properties": {"v": {"type": "string"}}},
            },
            [{"k": "n", "v": 1}, {"k": "s", "v": "1"}],
            [{"k": "n", "v": "1"}, {"k": "s", "v": 1}],
        ),
        (
            {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
            [[], [2], [3, 1, 2]],
            [[1, 1], [1, 2, 1]],
        ),
        ({"type": "array", "contains": {"const": 7}, "maxItems": 3}, [[7], [1, 7], [1, 2, 7]], [[], [1], [1, 2, 3]]),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 1},
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
            [{}],
        ),
        ({"type": "object", "propertyNames": {"pattern": "^[ab]$"}}, [{}, {"a": 1, "b": 2}], [{"c": 1}, {"ab": 1}]),
        (
            {"additionalProperties": {"type": "object"}, "not": {"properties": {"b": {"const": 1}}}},
            [{"b": {}}, {"b": {}, "c": {}}],
            [{}, {"b": 1}, {"b": 2}, {"b": "x"}, {"c": {}}],
        ),
        ({"type": "string", "format": "path"}, ["", "a/b", "é"], [1]),
        ({"type": "string", "format": "uri-reference"}, ["a/b?c#d", "", "//h/x", "http://h/"], ["a b", "%zz"]),
        (
            {"$defs": {"t": {"type": "string"}}, "oneOf": [{"$ref": "#/$defs/t"}, {"type": ["string", "null"]}]},
            [None],
            ["x", 1],
        ),
    ],
)
def test_rewritten_exactly(backend: ConstraintBackend, schema: Any, allowed: list[Any], refused: list[Any]) -> None:
    """What the library lacks is held all the same, neither more nor less."""
    compiled = compiled_schema(backend, schema)
    assert not isinstance(compiled, LmtoolError), compiled
    assert [value for value in allowed if not accepts(backend, compiled, compact(value))] == []
    assert [value for value in refused if accepts(backend, compiled, compact(value))] == []


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string", "pattern": "a*"}, "type": "string"}, "pattern"),
        ({"not": {"multipleOf": 0.3}, "type": "integer"}, "multipleOf"),
        ({"$ref": "https://example.org/other.json", "not": {"$ref": "#/nowhere"}}, "$ref"),
        ({"propertyNames": {"format": "date"}}, "propertyNames"),
    ],
)
def test_what_cannot_be_written_is_named(schema: Any, keyword: str) -> None:
    """The error names the keyword."""
    with pytest.raises(UnsupportedError, match=f"'{keyword.replace('$', '[$]')}'"):
        rewrite(schema)


def test_what_is_narrowed_is_told() -> None:
    """Fewer texts than the schema allows are said to be fewer; an exact rewriting says nothing."""
    assert rewrite({"type": "array", "contains": {"const": 1}}).narrowed
    assert rewrite({"type": "array", "contains": {"const": 1}, "maxItems": 2}).narrowed == ()


def test_too_much_work_ends() -> None:
    """A schema that would grow without end is refused."""
    deep: Any = {"type": "string"}
    for _ in range(12):
        deep = {"oneOf": [deep, {"required": ["a"]}, deep]}
    with pytest.raises(UnsupportedError):
        rewrite(deep)


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
