"""Strings and numbers of a schema."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.schema.document import UnsupportedError
from lmtool.guide.xgrammar import scalars
from lmtool.guide.xgrammar.json_rules import JsonRules
from lmtool.guide.xgrammar.notation import Rules
from tests.guide.xgrammar.reading import matches

NUMBERS = st.integers(-30, 30) | st.integers(-300, 300).map(lambda tenths: tenths / 10)
BOUNDS = st.dictionaries(st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]), NUMBERS)


def allowed(expression: str | None, rules: Rules, text: str) -> bool:
    return expression is not None and matches(rules.written(expression), text)


@given(BOUNDS, NUMBERS)
def test_numbers_within_bounds(node: dict[str, object], value: float) -> None:
    """Numbers of two digits behind the point, and whole ones, are allowed where the schema allows them."""
    valid = jsonschema.Draft202012Validator({"type": "number", **node}).is_valid(value)
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    assert allowed(scalars.number(node), Rules(), text) == valid
    whole = float(value).is_integer() and valid
    assert allowed(scalars.integer(node), Rules(), f"{value:.0f}".replace("-0", "0")) == whole or not whole


def test_numbers_with_bounds_are_narrower() -> None:
    """Which is told; the bounds' own digits are all written."""
    assert scalars.narrowed({}) is None
    assert "3 digits" in str(scalars.narrowed({"minimum": 0.125}))
    expression = scalars.number({"minimum": 0.125, "maximum": 0.126})
    assert allowed(expression, Rules(), "0.125")
    assert not allowed(expression, Rules(), "0.124")


def test_multiples() -> None:
    """Between two bounds they are listed; a step of one says nothing."""
    expression = scalars.integer({"minimum": -3, "maximum": 9, "multipleOf": 3})
    assert [value for value in range(-9, 12) if allowed(expression, Rules(), str(value))] == [-3, 0, 3, 6, 9]
    assert scalars.integer({"multipleOf": 1.0}) == scalars.integer({})


@given(st.integers(0, 4), st.none() | st.integers(0, 4), st.text('ab"\\\n é', max_size=5))
def test_lengths(least: int, most: int | None, text: str) -> None:
    """Lengths count characters, escaped ones too."""
    rules = Rules()
    node = {"minLength": least} if most is None else {"minLength": least, "maxLength": most}
    valid = jsonschema.Draft202012Validator({"type": "string", **node}).is_valid(text)
    written = scalars.string(node, JsonRules(rules, any_whitespace=False))
    assert allowed(written, rules, json.dumps(text, ensure_ascii=False)) == valid
    assert allowed(written, rules, json.dumps(text)) == valid


def test_patterns_and_formats() -> None:
    """Each within quotes."""
    rules = Rules()
    json_rules = JsonRules(rules, any_whitespace=False)
    assert allowed(scalars.string({"pattern": "^a+$"}, json_rules), rules, '"aa"')
    assert allowed(scalars.string({"pattern": "b"}, json_rules), rules, '"abc"')
    assert allowed(scalars.string({"format": "date"}, json_rules), rules, '"2024-01-31"')
    assert not allowed(scalars.string({"format": "date"}, json_rules), rules, '"2024-01-32"')


@pytest.mark.parametrize(
    ("kind", "node", "keyword"),
    [
        ("string", {"pattern": "a", "maxLength": 3}, "maxLength"),
        ("string", {"pattern": "a", "minLength": 3}, "minLength"),
        ("string", {"pattern": "a", "format": "date"}, "format"),
        ("string", {"pattern": r"a\b"}, "pattern"),
        ("string", {"pattern": 3}, "pattern"),
        ("string", {"format": "no such"}, "format"),
        ("string", {"maxLength": 1.5}, "maxLength"),
        ("string", {"maxLength": -1}, "maxLength"),
        ("integer", {"multipleOf": 3}, "multipleOf"),
        ("integer", {"minimum": True}, "minimum"),
        ("integer", {"minimum": 10**30}, "minimum"),
        ("number", {"multipleOf": 0.5}, "multipleOf"),
        ("number", {"minimum": 1e-15}, "minimum"),
    ],
)
def test_refused(kind: str, node: dict[str, object], keyword: str) -> None:
    """What cannot be held is named."""
    writers = {
        "string": lambda: scalars.string(node, JsonRules(Rules(), any_whitespace=False)),
        "integer": lambda: scalars.integer(node),
        "number": lambda: scalars.number(node),
    }
    with pytest.raises(UnsupportedError) as refused:
        writers[kind]()
    assert refused.value.keyword == keyword
