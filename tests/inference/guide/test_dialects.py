"""Schemas of every dialect allow what their dialect says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lmtool.core import constraint
from lmtool.inference.guide.answer_check import validate
from lmtool.inference.guide.dialects import Reading, in_2020_12
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from tests.inference.guide import awkward
from tests.inference.guide.dialect_run import run
from tests.inference.guide.following import accepts, compact, compiled_schema
from tests.inference.guide.schema_maker import DIALECTS

ARRAY: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"enum": ["a", "b"]}}
OBJECT = {"type": "object", "properties": {"a": {}, "b": {}}}
DYNAMIC = {"$dynamicAnchor": "n", "const": "x"}
SEVENTH = DIALECTS["07"]
SIX_AND_LATER = [DIALECTS[name] for name in ("06", "07", "2019", "2020")]
VALUES: list[Any] = [
    [],
    ["a"],
    ["b"],
    ["a", "b"],
    [1],
    [1, "x"],
    [1, 2, 3],
    ["x"],
    {},
    {"a": 1},
    {"a": 1, "b": 2},
    5,
    6,
    "x",
]


def allowed(backend: ConstraintBackend, schema: Any, values: list[Any]) -> list[Any]:
    made = compiled_schema(backend, schema)
    assert isinstance(made, CompiledConstraint), made
    return [value for value in values if accepts(backend, made, compact(value))]


@pytest.mark.parametrize("dialect", [uri for uri in DIALECTS.values() if uri])
def test_contains(backend: ConstraintBackend, dialect: str) -> None:
    """An array must contain the item, also where the dialect is older than the keyword."""
    schema = {"$schema": dialect, **ARRAY, "contains": {"const": "b"}}
    assert allowed(backend, schema, [["a"], ["b"]]) == [["b"]]


@pytest.mark.parametrize("dialect", [*SIX_AND_LATER, DIALECTS["04"]])
@pytest.mark.parametrize(
    "schema", [{"not": {"items": {"enum": ["a"]}}}, {"oneOf": [{"items": {"enum": ["a"]}}, {"maxItems": 1}]}]
)
def test_negated_items(backend: ConstraintBackend, dialect: str, schema: dict[str, Any]) -> None:
    """What must not hold of all items does not, in every dialect; what is allowed is not empty."""
    whole = {"$schema": dialect, **ARRAY, "maxItems": 2, **schema}
    valid = [value for value in VALUES if jsonschema.validators.validator_for(whole)(whole).is_valid(value)]
    assert 0 < len(valid) < 3
    assert allowed(backend, whole, VALUES) == valid


@pytest.mark.parametrize("dialect", SIX_AND_LATER)
def test_conditions_about_items(backend: ConstraintBackend, dialect: str) -> None:
    """`if` over `items` decides, in every dialect that has it."""
    condition = {"if": {"items": {"enum": ["a"]}}, "then": {"maxItems": 1}, "else": {"minItems": 2}}
    schema = {"$schema": dialect, **ARRAY, "maxItems": 2, **condition}
    found = allowed(backend, schema, [["a"], ["b"], ["a", "b"], ["a", "a"]])
    assert found == [["a"], ["a", "b"]]


@pytest.mark.parametrize(
    ("dialect", "schema", "valid"),
    [
        ("2019", {"type": "array", "items": [{"type": "integer"}], "unevaluatedItems": False}, [[], [1]]),
        ("07", {"type": "array", "items": [{"const": 1}], "additionalItems": {"type": "string"}}, [[], [1], [1, "x"]]),
        ("04", {"type": "integer", "minimum": 5, "exclusiveMinimum": True, "maximum": 6}, [6]),
        ("04", {"type": "integer", "minimum": 5, "exclusiveMinimum": False, "maximum": 5}, [5]),
        ("07", {**OBJECT, "dependencies": {"a": ["b"]}}, [{}, {"a": 1, "b": 2}]),
        ("07", {"$ref": "#/definitions/x", "type": "string", "definitions": {"x": {"const": 5}}}, [5]),
        ("2019", {"$ref": "#/definitions/x", "maximum": 5, "definitions": {"x": {"type": "integer"}}}, [5]),
        ("2020", {"items": {"$dynamicRef": "#n"}, "type": "array", "$defs": {"x": DYNAMIC}}, [[], ["x"]]),
        ("2019", {"type": "array", "maxItems": 0, "items": {"$recursiveRef": "#"}}, [[]]),
        ("none", {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [[], [1]]),
        ("none", {"type": "object", "$schema": "https://example.org/mine", "maxProperties": 0}, [{}]),
    ],
)  # fmt: skip
def test_spellings(backend: ConstraintBackend, dialect: str, schema: dict[str, Any], valid: list[Any]) -> None:
    """Each dialect's own keywords, and those that it defines in another way; validation agrees."""
    whole = {"$schema": DIALECTS[dialect], **schema} if DIALECTS[dialect] else schema
    assert allowed(backend, whole, VALUES) == valid
    assert [
        value for value in VALUES if validate(constraint.json_schema(whole), compact(value), 1000).error is None
    ] == valid


def test_embedded_schemas(backend: ConstraintBackend) -> None:
    """A part that names a dialect, or has an id, is read by these."""
    part = {"$schema": SEVENTH, "$id": "http://x/part", "items": [{"$ref": "#/definitions/n", "type": "string"}]}
    schema = {
        "$id": "http://x/whole",
        "type": "object",
        "properties": {"a": {"$ref": "part"}, "b": {"$ref": "#/$defs/n", "maximum": 5}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"part": {**part, "type": "array", "definitions": {"n": {"const": 1}}}, "n": {"type": "integer"}},
    }
    values = [{"a": a, "b": b} for a in ([1], [2], [1, 2]) for b in (5, 6)]
    assert allowed(backend, schema, values) == [{"a": [1], "b": 5}, {"a": [1, 2], "b": 5}]


def test_keywords_of_later_drafts(backend: ConstraintBackend) -> None:
    """They are held, with a warning, where that only excludes; they say nothing where it would allow more, or all."""
    old = {"$schema": DIALECTS["04"], "type": "string"}
    made = compiled_schema(backend, {**old, "const": "x"})
    assert not accepts(backend, made, '"y"')
    assert "'const' is enforced" in made.warnings[0]
    assert Reading({**old, "oneOf": [{"const": "x"}, {"maxLength": 1}]}, exact=False).added == []
    assert in_2020_12({**old, "not": {"minLength": 2, "const": "x"}})["not"] == {"minLength": 2}
    assert allowed(backend, {**old, "maxLength": 1, "const": "xx"}, ["xx", "x"]) == ["x"]


def test_names_that_must_not_all_be_others(backend: ConstraintBackend) -> None:
    """`not` over `propertyNames: {"not": {"enum"}}` asks for such a name."""
    schema = {"type": "object", "not": {"propertyNames": {"not": {"enum": ["a", "b c"]}}}}
    assert allowed(backend, schema, [{}, {"a": 1}, {"b c": 1}, {"c": 1}]) == [{"a": 1}, {"b c": 1}]


def test_references_to_false(backend: ConstraintBackend) -> None:
    """A property that refers to `false` must not be there; others may."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}, "$defs": {"no": False}}
    assert allowed(backend, schema, [{}, {"a": 1}, {"b": 1}]) == [{}, {"b": 1}]


def test_random_schemas() -> None:
    """Of every dialect, with negations of every keyword: no finished text is invalid. `dialect_run` draws more."""
    backend = awkward.backend()
    figures = run(150, 20_000, backend)
    backend.close()
    assert figures.invalid == []
    assert figures.texts["ended"] > 150
    assert figures.schemas - figures.refused.total() > 70
