"""Rewritten schemas allow nothing that the original does not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.guide.schema.document import UnsupportedError
from lmtool.inference.guide.schema.rewriting import rewrite
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
