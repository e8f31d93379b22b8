"""Branches written with `anyOf` and `allOf`."""

from __future__ import annotations

import jsonschema
import pytest

from lmtool.inference.guide.schema.combinators import write_dependencies, write_if, write_not, write_one_of
from lmtool.inference.guide.schema.document import Document, UnsupportedError
from tests.inference.guide.following import accepts, compact, compiled_schema


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
