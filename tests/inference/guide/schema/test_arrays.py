"""Arrays of different items, and arrays that contain one."""

from __future__ import annotations

from itertools import product

import pytest
from jsonschema import Draft202012Validator

from lmtool.inference.guide.schema.arrays import write_contains, write_unique_items
from lmtool.inference.guide.schema.document import Document, UnsupportedError


def test_all_arrays_of_few_values():
    """Every array of different values is listed, within the bounds."""
    node = {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": ["a", "b", "b", 3], "type": "string"},
        "minItems": 1,
    }
    assert write_unique_items(node, Document({})) == [{"enum": [["a"], ["b"], ["a", "b"], ["b", "a"]]}]
    assert node == {"type": "array"}


@pytest.mark.parametrize(
    "node", [{"uniqueItems": False}, {"uniqueItems": True, "maxItems": 1}, {"uniqueItems": True, "type": "string"}]
)
def test_unique_without_effect(node):
    """Where no two items can be, nothing is to be held."""
    assert write_unique_items(dict(node), Document({})) == []


@pytest.mark.parametrize("items", [True, {"type": "integer"}, {"enum": list(range(9))}, {"type": ["string", "null"]}])
def test_too_many_values(items):
    """Items of many values are refused."""
    with pytest.raises(UnsupportedError, match="uniqueItems"):
        write_unique_items({"uniqueItems": True, "items": items}, Document({}))


def test_only_valid_values_count():
    """Items of many values, of which the keywords beside them leave few."""
    node = {"type": "array", "uniqueItems": True, "items": {"enum": list(range(9)), "maximum": 1}, "minItems": 2}
    assert write_unique_items(node, Document({})) == [{"enum": [[0, 1], [1, 0]]}]


def test_other_types_pass():
    """What is no array is not concerned."""
    [written] = write_unique_items(
        {"type": ["array", "null"], "uniqueItems": True, "items": {"const": 1}}, Document({})
    )
    assert written == {"anyOf": [{"type": ["null"]}, {"enum": [[], [1]]}]}


def test_contains():
    """The item stands at one of the places that there are; with more than can be written, at one of the first."""
    document = Document({})
    [written] = write_contains({"type": "array", "contains": {"const": 1}, "maxItems": 2}, document)
    assert [way["minItems"] for way in written["anyOf"]] == [1, 2]
    assert not document.narrowed
    write_contains({"type": "array", "contains": {"const": 1}}, document)
    assert document.narrowed
    assert write_contains({"contains": {}, "minContains": 0}, document) == []
    for odd in ({"minContains": "2"}, {"maxContains": 1.5}, {"prefixItems": [True]}):
        with pytest.raises(UnsupportedError, match="contains"):
            write_contains({"type": "array", "contains": {}, **odd}, document)


@pytest.mark.parametrize(
    "counts", [{"minContains": 2}, {"maxContains": 1}, {"minContains": 0, "maxContains": 1}, {"maxContains": 2}]
)
def test_contains_counted(counts):
    """As many items as are asked for, no fewer and no more; the same arrays as jsonschema allows, up to four items."""
    schema = {"type": "array", "contains": {"const": 1}, "maxItems": 3, **counts}
    document = Document(schema)
    [written] = write_contains(dict(schema), document)
    ours, theirs = Draft202012Validator({"maxItems": 3, **written}), Draft202012Validator(schema)
    arrays = [list(array) for length in range(4) for array in product((1, 2, "x"), repeat=length)]
    assert [array for array in arrays if ours.is_valid(array) != theirs.is_valid(array)] == []
