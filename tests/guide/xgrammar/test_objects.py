"""Objects of a schema."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.schema.document import UnsupportedError
from tests.guide.xgrammar.judging import allows, written

HELD = st.sampled_from([False, {"type": "integer"}, {"type": ["string", "integer"]}])
NAMES = ("a", "ab", "b")


@given(
    st.dictionaries(st.sampled_from(NAMES), HELD, max_size=3),
    st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    HELD,
    st.dictionaries(st.sampled_from([*NAMES, "c"]), st.sampled_from([1, "x"]), max_size=3),
)
def test_objects(properties: dict[str, object], required: list[str], others: object, value: dict[str, object]) -> None:
    """Objects with their members in order are allowed where they are valid; no further name is one of those named."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": others}
    order = [*properties, *(name for name in required if name not in properties)]
    sorted_value = {
        name: value[name] for name in (*order, *(name for name in value if name not in order)) if name in value
    }
    assert allows(schema, sorted_value) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_a_name_comes_once() -> None:
    """A named property has no second value, also not under another spelling."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert allows(schema, '{"a":1,"b":"x"}')
    assert not allows(schema, '{"a":1,"a":"x"}')
    assert not allows(schema, r'{"\u0061":"x"}')


def test_patterned_names() -> None:
    """Only names that match, which is told unless the schema itself says it."""
    schema = {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}}
    assert allows(schema, {"x_1": 1, "x_2": 2})
    assert not allows(schema, {"x_1": "a"})
    assert not allows(schema, {"y": 1})
    assert "only properties that match" in written(schema)[1][0]
    assert written({**schema, "additionalProperties": False})[1] == ()


def test_counts() -> None:
    """A count of properties without names: one at least, or some at most."""
    schema = {"type": "object", "minProperties": 1, "maxProperties": 2}
    assert [allows(schema, dict.fromkeys("abc"[:count], 1)) for count in range(4)] == [False, True, True, False]


def test_many_names() -> None:
    """Where telling further names apart would take too much, there are none, which is told."""
    schema = {"type": "object", "properties": {"n" * 400 + str(n): {} for n in range(3)}}
    assert not allows(schema, {"other": 1})
    assert "only those that the schema names" in written(schema)[1][0]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"minProperties": 2}, "minProperties"),
        ({"properties": {"a": {}}, "minProperties": 1}, "minProperties"),
        ({"properties": {"a": {}}, "maxProperties": 1}, "maxProperties"),
        ({"patternProperties": {"a": {}, "b": {}}}, "patternProperties"),
        ({"patternProperties": {"a": {}}, "properties": {"b": {}}}, "patternProperties"),
        ({"patternProperties": {r"a\b": {}}}, "patternProperties"),
    ],
)
def test_refused(schema: dict[str, object], keyword: str) -> None:
    """What cannot be held is named."""
    with pytest.raises(UnsupportedError) as refused:
        written({"type": "object", **schema})
    assert refused.value.keyword == keyword
