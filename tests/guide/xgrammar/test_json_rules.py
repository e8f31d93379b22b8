"""JSON without a schema."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.guide.xgrammar.json_rules import JsonRules, literal
from lmtool.guide.xgrammar.notation import Rules
from tests.guide.xgrammar.reading import as_pattern, matches


def grammar(*, any_whitespace: bool = False) -> str:
    rules = Rules()
    json_rules = JsonRules(rules, any_whitespace=any_whitespace)
    return rules.written(json_rules.anything)


@pytest.mark.parametrize(
    "text", ['"a"', "1.5", "true", "null", "[]", "{}", '[1,"a"]', '{"a":1,"b":null}', r'"\u00e9\n"']
)
def test_values(text: str) -> None:
    """Every kind of value is one."""
    assert matches(grammar(), text)


@pytest.mark.parametrize("text", ["", "01", "[1,]", '{"a"}', '"', '"\n"', "nul", "[1 ,2]", r'"\x"', r'"\ud800"', "'a'"])
def test_what_is_no_json(text: str) -> None:
    """Nothing else is: neither controls in strings, nor halves of surrogate pairs, nor blanks in compact JSON."""
    assert not matches(grammar(), text)


def test_blanks() -> None:
    """Where they are allowed they may stand around every sign."""
    loose = grammar(any_whitespace=True)
    assert matches(loose, '{ "a" : [ 1 ,\n2 ] }')
    assert matches(loose, '{"a":[1,2]}')
    assert "blank_0" in loose
    assert as_pattern(loose)


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2), max_leaves=3
    )
)
def test_literals(value: object) -> None:
    """A literal is the compact JSON of its value, and nothing else."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert matches(Rules().written(literal(value)), text)
    assert not matches(Rules().written(literal(value)), text + "x")
