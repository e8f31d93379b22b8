"""Mistakes in a JSON Schema or a regular expression, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.llguidance import ConstraintBackend
from lmtool.inference.guide.schema.mistakes import mistake_in, without_unsupported_patterns
from tests.inference.guide.following import EOS, TOKENIZER, VOCAB


@pytest.fixture(scope="module")
def backend() -> Iterator[ConstraintBackend]:
    """For the embedded model's tokenizer."""
    made = ConstraintBackend(TOKENIZER, VOCAB, EOS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(?<=b)c", "look-ahead and look-behind are not supported, at character 2: (?<=b)c"),
        (r"(a)\1", r"back-references are not supported, at character 4: \1"),
        (r"a\bc", r"supported at the ends only, at character 2: \bc"),
        ("[$]a$b", "supported at the ends only, at character 5: $b"),
    ],
)
def test_the_place_in_an_expression(backend: ConstraintBackend, pattern: str, why: str) -> None:
    """Characters are counted from 1."""
    with pytest.raises(ConstraintError) as raised:
        backend.compile(constraint.regex(pattern))
    assert raised.value.message.endswith(why)
    assert raised.value.hints


@pytest.mark.parametrize(
    ("schema", "pointer", "why"),
    [
        ({"type": "strin"}, "#/type", '"strin" stands there; expected one of array'),
        ({"properties": {"a/b~c": {"minimum": "3"}}}, "#/properties/a~1b~0c/minimum", "expected a number"),
        ({"items": [{}, {"minLength": -1}]}, "#/items/1/minLength", "expected a whole number from 0"),
        ({"maxLength": float("inf")}, "#/maxLength", "expected a whole number from 0"),
        ({"anyOf": {}}, "#/anyOf", "expected a list of schemas"),
        ({"not": 5}, "#/not", "5 is no schema"),
        ({"required": "a"}, "#/required", "expected a list of names"),
        ({"multipleOf": 0}, "#/multipleOf", "expected a number above 0"),
        ({"patternProperties": {"([": {}}}, "#/patternProperties/([", "unclosed character class, at character 2"),
        ({"pattern": "^a$b"}, "#/pattern", "supported at the ends only, at character 3"),
        ({"allOf": [{"pattern": "(?=x)"}]}, "#/allOf/0/pattern", "look-ahead and look-behind are not supported"),
        ({"properties": {"a": {"$ref": "#/nope"}}}, "#/properties/a/$ref", '"#/nope" is not within the schema'),
        ({"$ref": "http://x/y"}, "#/$ref", "nothing is fetched"),
    ],
)
def test_the_place_of_a_mistake(schema: dict[str, Any], pointer: str, why: str) -> None:
    """The first one, as a JSON pointer into the user's document, in words."""
    found = mistake_in(schema)
    assert found is not None
    assert found.pointer == pointer
    assert why in found.why


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": ["string", "null"], "minLength": 2.0, "enum": [{"type": "strin"}], "default": {"minimum": "x"}},
        {"$id": "http://x/", "$ref": "y"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"pattern": "^a$", "exclusiveMinimum": True, "required": True}}},
    ],
)
def test_what_is_no_mistake(schema: Any) -> None:
    """Values, references to names, and what older drafts allow."""
    assert mistake_in(schema) is None


def test_patterns_that_are_not_supported_are_left_out() -> None:
    """And no others; a warning names each."""
    schema = {"properties": {"a": {"type": "string", "pattern": "(?=x)"}, "b": {"pattern": "^x$"}}}
    wider, warnings = without_unsupported_patterns(schema)
    assert wider == {"properties": {"a": {"type": "string"}, "b": {"pattern": "^x$"}}}
    assert len(warnings) == 1
    assert warnings[0].startswith("#/properties/a/pattern is ignored: look-ahead")
