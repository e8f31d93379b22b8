"""`uniqueItems` and `contains`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lmtool.core.constraint import json_schema
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.guide.schema.arrays import write_contains, write_unique_items
from lmtool.inference.guide.schema.document import Document, UnsupportedError
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts, compact, walk


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


TEXT = {"type": "string"}
SET: dict[str, Any] = {"type": "array", "items": TEXT, "uniqueItems": True}
"""What pydantic writes for `set[str]`."""
MANY = [f"v{number}" for number in range(12)]


@pytest.fixture(scope="module")
def backend() -> Iterator[ConstraintBackend]:
    """For the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def compiler() -> Iterator[MatcherCompiler]:
    """For the same."""
    made = MatcherCompiler(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (SET, [[], ["a"], ["a", "b", "ab"]], [["a", "a"], ["a", "b", "a"], [1]]),
        (
            {"type": "array", "items": {"enum": MANY}, "uniqueItems": True, "minItems": 10},
            [MANY],
            [["v1"] * 10, ["v1"]],
        ),
        (
            {"type": "object", "properties": {"a": SET, "b": {"type": "string"}}, "required": ["a", "b"]},
            [{"a": ["x", "y"], "b": "x"}, {"a": ["b"], "b": "a"}],
            [{"a": ["x", "x"], "b": ""}],
        ),
        ({"type": "array", "items": SET}, [[["a"], ["a"]], [["a", "b"], []]], [[["a", "a"]]]),
    ],
)
def test_strings_are_unique(
    backend: ConstraintBackend, schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    """No string comes twice in an array; it may in two arrays, and be a name or a value elsewhere."""
    template = backend.compile(json_schema(schema))
    assert [value for value in good if not accepts(backend, template, compact(value))] == []
    assert [value for value in bad if accepts(backend, template, compact(value))] == []


@pytest.mark.parametrize(
    "schema",
    [
        SET,
        {"type": "array", "items": {"enum": MANY}, "uniqueItems": True, "minItems": 11},
        {"type": "array", "items": {"type": "string", "pattern": "^[ab]{1,2}$"}, "uniqueItems": True, "minItems": 6},
    ],
)
def test_random_answers_are_valid(
    backend: ConstraintBackend, compiler: MatcherCompiler, schema: dict[str, Any]
) -> None:
    """What a model draws within the masks ends as a set, also where it takes all the strings that there are."""
    template, validator = backend.compile(json_schema(schema)), Draft202012Validator(schema)
    ended = 0
    for seed in range(12):
        text, whole = walk(compiler, backend, template.guide(), seed, 120)
        ended += whole
        assert not whole or validator.is_valid(json.loads(text)), text
    assert ended


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"properties": {"a": SET, "b": {"type": "array", "items": {"const": "x"}}}},
        {"properties": {"a": SET, "b": {"const": ["x", "x"]}}},
    ],
)
def test_what_cannot_be_kept_apart(backend: ConstraintBackend, schema: dict[str, Any]) -> None:
    """Other items, and strings beside arrays that may need one twice, are refused by name where strict."""
    with pytest.raises(ConstraintError, match="uniqueItems"):
        backend.compile(json_schema(schema))


def test_other_arrays_are_held_too(backend: ConstraintBackend) -> None:
    """Arrays that could have a string twice do not, and a warning says so."""
    template = backend.compile(json_schema({"properties": {"a": SET, "b": {"type": "array", "items": TEXT}}}))
    assert "those of the others are, too" in template.warnings[0]
