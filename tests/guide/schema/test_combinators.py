"""Branches written with `anyOf` and `allOf`."""

from __future__ import annotations

import pytest

from lmtool.guide.schema.combinators import write_dependencies, write_if, write_not, write_one_of
from lmtool.guide.schema.document import Document, UnsupportedError


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


def test_each_takes_its_keywords():
    """What is written is taken out of the node, and what says nothing leaves nothing."""
    document = Document({})
    node = {"not": False, "if": {"type": "null"}, "dependencies": {"a": []}, "required": ["b"]}
    assert write_not(node, document) == [True]
    assert write_if(node, document) == []
    assert write_dependencies(node, document) == [True]
    assert node == {"required": ["b"]}


def test_a_dependency_of_a_required_property():
    """What depends on a property that must be there must hold."""
    node = {"type": "object", "required": ["a"], "dependentSchemas": {"a": {"required": ["b"]}}}
    assert write_dependencies(node, Document({})) == [{"required": ["b"]}]


@pytest.mark.parametrize("node", [{"dependencies": 5}, {"dependencies": {"a": 5}}, {"dependentRequired": {"a": [5]}}])
def test_wrong_shapes(node):
    """Dependencies of another shape are refused."""
    with pytest.raises(UnsupportedError):
        write_dependencies(dict(node), Document({}))
