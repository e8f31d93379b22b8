"""`unevaluatedProperties` and `unevaluatedItems`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lmtool.core.constraint import json_schema
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.llguidance import ConstraintBackend
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts, compact

A, B, C = ({"properties": {name: {"type": "integer"}}} for name in "abc")
OBJECTS: list[Any] = [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2}, {"a": 1, "c": 3}, {"c": 3}, {"a": "x"}, 7]
LISTS: list[Any] = [[], [1], [1, "x"], [1, "x", 2], ["x"], [1, 2], "x"]


@pytest.fixture(scope="module")
def backend() -> Iterator[ConstraintBackend]:
    """For the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "unevaluatedProperties": False},
        {**A, "unevaluatedProperties": {"type": "string"}},
        {**A, "allOf": [B], "unevaluatedProperties": False},
        {**A, "$ref": "#/$defs/b", "$defs": {"b": B}, "unevaluatedProperties": False},
        {**A, "anyOf": [{**B, "required": ["b"]}, {**C, "required": ["c"]}], "unevaluatedProperties": False},
        {"oneOf": [{**A, "required": ["a"]}, {**C, "required": ["c"]}], "unevaluatedProperties": False},
        {"if": {**A, "required": ["a"]}, "then": B, "else": C, "unevaluatedProperties": False},
        {**A, "dependentSchemas": {"a": B}, "unevaluatedProperties": False},
        {**A, "additionalProperties": True, "unevaluatedProperties": False},
        {"allOf": [A, {**B, "unevaluatedProperties": True}], "unevaluatedProperties": False},
        {**A, "patternProperties": {"^c$": True}, "unevaluatedProperties": False},
        {**A, "not": {"required": ["c"]}, "unevaluatedProperties": False},
        {"properties": {"a": {"type": "integer"}}, "anyOf": [{"type": "object"}, {"type": "integer"}]}
        | {"unevaluatedProperties": False},
        {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
        {"prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}},
        {"allOf": [{"prefixItems": [True, {"type": "string"}]}], "unevaluatedItems": False},
        {"anyOf": [{"prefixItems": [True, True]}, {"prefixItems": [{"type": "string"}]}], "unevaluatedItems": False},
        {"items": True, "unevaluatedItems": False},
    ],
)
def test_equals_another_implementation(backend: ConstraintBackend, schema: dict[str, Any]) -> None:
    """What parts that match evaluate is allowed, and nothing beside it: each instance as jsonschema judges it."""
    template = backend.compile(json_schema(schema))
    validator = Draft202012Validator(schema)
    for instance in (*OBJECTS, *LISTS):
        assert accepts(backend, template, compact(instance)) == validator.is_valid(instance), instance


@pytest.mark.parametrize(
    "schema",
    [
        {"contains": {"type": "string"}, "unevaluatedItems": False},
        {"$dynamicRef": "#a", "unevaluatedProperties": False},
        {"anyOf": [{**A, "if": A, "then": B, "else": C}] * 4, "unevaluatedProperties": False},
    ],
)
def test_what_cannot_be_written_is_refused(backend: ConstraintBackend, schema: dict[str, Any]) -> None:
    """By name, where strict."""
    with pytest.raises(ConstraintError, match="unevaluated"):
        backend.compile(json_schema(schema))
