"""`not`, `oneOf`, `if`, dependencies and `unevaluated...`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from lmtool.core.constraint import json_schema
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.guide.schema.combinators import write_dependencies, write_if, write_not, write_one_of
from lmtool.inference.guide.schema.document import Document, UnsupportedError
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts, compact, compiled_schema


def test_exclusive_branches_stay_as_they_are():
    """Branches that exclude each other become alternatives."""
    node = {"oneOf": [{"type": "string"}, {"type": "null"}], "title": "t"}
    assert write_one_of(node, Document({})) == [{"anyOf": [{"type": "string"}, {"type": "null"}]}]
    assert node == {"title": "t"}


def test_type_of_the_node_tells_branches_apart():
    """Branches are apart also by the type that stands beside them."""
    node = {"type": "object", "oneOf": [{"required": ["a"], "properties": {"b": False}}, {"required": ["b"]}]}
    [written] = write_one_of(dict(node), Document(node))
    assert written == {"anyOf": node["oneOf"]}


def test_branches_without_a_type(backend):
    """Branches that say something of objects only all match what is no object, so that nothing else is valid."""
    branches = [{"required": ["kind"], "properties": {"kind": {"const": name}}} for name in "abc"]
    [written] = write_one_of({"oneOf": branches}, Document({}))
    objects, others = written["anyOf"]
    assert objects == {"type": "object", "oneOf": branches}
    assert "object" not in others["type"]
    for schema in ({"oneOf": branches}, {"oneOf": [*branches[:2], {"minLength": 2, **branches[2]}]}):
        made, judge = compiled_schema(backend, schema), jsonschema.Draft202012Validator(schema)
        values = [{"kind": "a"}, {"kind": "d"}, {"kind": "c", "x": 1}, {}, {"x": 1}, "x", "xy", 1, None, [], True]
        valid = [value for value in values if judge.is_valid(value)]
        assert [value for value in values if accepts(backend, made, compact(value))] == valid


def test_each_takes_its_keywords():
    """What is written is taken out of the node, and what says nothing leaves nothing."""
    document = Document({})
    node = {"not": False, "if": {"type": "null"}, "dependentRequired": {"a": []}, "required": ["b"]}
    assert write_not(node, document) == [True]
    assert write_if(node, document) == []
    assert write_dependencies(node, document) == [True]
    assert node == {"required": ["b"]}


def test_a_dependency_of_a_required_property():
    """What depends on a property that must be there must hold."""
    node = {"type": "object", "required": ["a"], "dependentSchemas": {"a": {"required": ["b"]}}}
    assert write_dependencies(node, Document({})) == [{"required": ["b"]}]


@pytest.mark.parametrize(
    "node", [{"dependentSchemas": 5}, {"dependentSchemas": {"a": 5}}, {"dependentRequired": {"a": [5]}}]
)
def test_wrong_shapes(node):
    """Dependencies of another shape are refused."""
    with pytest.raises(UnsupportedError):
        write_dependencies(dict(node), Document({}))


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
