"""`uniqueItems` over strings: kept apart while they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lmtool.core.constraint import json_schema
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import ConstraintBackend
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB, accepts, compact, walk

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
