"""What schemas are made of."""

from __future__ import annotations

import pytest

from lmtool.inference.guide.schema.document import (
    MAX_NODES,
    Document,
    UnsupportedError,
    all_of,
    any_of,
    may_be,
    named_schemas,
    names,
    schemas,
    significant,
    type_name,
    types_of,
)


def test_references():
    """A reference leads to its part of the document, through escapes and lists, or is refused."""
    document = Document(
        {"$defs": {"a/b~c": {"type": "null"}, "r": {"$ref": "#/$defs/a~1b~0c"}}, "allOf": [True, {"$ref": "#/allOf/1"}]}
    )
    assert document.target({"$ref": "#/$defs/r", "title": "t"}) == {"type": "null"}
    assert document.resolve("#/allOf/0") is True
    assert document.resolve("#") == document.root
    assert document.target({"$ref": "#/$defs/r", "type": "null"}) == {"$ref": "#/$defs/r", "type": "null"}
    for bad in ("#/nowhere", "https://example.org", "#/allOf/7", 5, "#/$defs"):
        if bad != "#/$defs":
            with pytest.raises(UnsupportedError):
                document.resolve(bad)
    with pytest.raises(UnsupportedError, match="itself"):
        document.target({"$ref": "#/allOf/1"})


def test_work_is_counted():
    """More work than a document may take is refused."""
    document = Document({})
    document.count(MAX_NODES)
    with pytest.raises(UnsupportedError):
        document.count()


def test_types():
    """A schema names its types itself, or by its values; an integer is a number."""
    assert types_of({"type": ["string", "null"]}) == {"string", "null"}
    assert types_of({"enum": [1, 1.5, "x"]}) == {"integer", "number", "string"}
    assert types_of({"const": True}) == {"boolean"}
    assert types_of({}) is types_of(True) is None
    assert may_be({"type": "integer"}, "number")
    assert not may_be({"type": "integer"}, "string")
    assert [type_name(value) for value in (None, 2.0, [], {})] == ["null", "integer", "array", "object"]
    assert significant({"title": "t", "x-own": 1, "not": {}}) == {"not"}


def test_joining():
    """Parts are joined into one schema where they do not meet, and kept apart where they do."""
    a, b = (
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "required": ["c"], "properties": {"b": False}},
    )
    assert all_of([a, b]) == {"type": "object", "properties": {"a": False, "b": False}, "required": ["c"]}
    assert all_of([a, {"properties": {"a": True}}]) == {"allOf": [a, {"properties": {"a": True}}]}
    assert all_of([a, False]) is False
    assert all_of([True, {}]) is True
    assert all_of([{"minLength": 1}]) == {"minLength": 1}
    assert any_of([a, False]) is a
    assert any_of([a, b]) == {"anyOf": [a, b]}
    assert any_of([]) is False
    assert any_of([a, {}]) is True


def test_shapes():
    """Keywords of a wrong shape are refused by name."""
    for read in (schemas, named_schemas, names):
        with pytest.raises(UnsupportedError, match="'key'"):
            read(5, "key")
    with pytest.raises(UnsupportedError):
        schemas([5], "key")
