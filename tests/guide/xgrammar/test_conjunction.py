"""What two schemas allow both."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.schema.document import Document, Schema, UnsupportedError
from lmtool.guide.xgrammar.conjunction import branches, conjunction

NODES = st.sampled_from([
    {},
    {"type": "integer"},
    {"type": ["number", "string"]},
    {"type": "string", "maxLength": 2},
    {"minLength": 1, "maxLength": 3},
    {"minimum": 1},
    {"minimum": 2, "exclusiveMaximum": 5},
    {"enum": [1, 2.0, "a", [1]]},
    {"const": 2},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"properties": {"b": {"type": "integer"}}, "additionalProperties": False},
    {"additionalProperties": {"type": "integer"}},
    {"items": {"type": "integer"}, "maxItems": 1},
    {"items": {"minimum": 2}, "minItems": 1},
])  # fmt: skip
VALUES = [None, 1, 2, 3.5, "", "a", "abc", [], [1], [2], [2, 3], {}, {"a": 1}, {"b": 1}, {"a": "x"}, {"a": 1, "b": 1}]


def valid(value: object, schema: Schema) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@given(NODES, NODES, st.sampled_from(VALUES))
def test_both_hold(one: dict[str, object], other: dict[str, object], value: object) -> None:
    """A value is valid under the conjunction where it is so under both, and nowhere else."""
    joined = conjunction(one, other)
    assert valid(value, joined if joined is not None else False) == (valid(value, one) and valid(value, other))


@given(NODES, NODES, NODES, st.sampled_from(VALUES))
def test_branches(one: dict[str, object], other: dict[str, object], third: dict[str, object], value: object) -> None:
    """`allOf` and `anyOf` beside each other and beside references are written as alternatives without them."""
    schema = {"$defs": {"t": third}, "$ref": "#/$defs/t", "allOf": [one], "anyOf": [other, {"type": "null"}], **third}
    made = branches(schema, Document(schema))
    assert not any(node.keys() & {"allOf", "anyOf", "$ref"} for node in made)
    assert any(valid(value, node) for node in made) == valid(value, schema)


def test_a_reference_alone_stays() -> None:
    """So that a schema may hold itself; beside others it is followed."""
    schema: Schema = {"$defs": {"a": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}
    assert branches(schema, Document(schema)) == [{"$ref": "#/$defs/a"}, {"$ref": "#"}]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "pattern"),
        ({"allOf": [{"patternProperties": {"a": True}}, {"properties": {"a": True}}]}, "patternProperties"),
        ({"allOf": [{"prefixItems": [True]}, {"items": True}]}, "items"),
        ({"allOf": [{"anyOf": [{"minimum": n} for n in range(20)]}] * 2}, "anyOf"),
        ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "$ref"),
    ],
)
def test_refused(schema: Schema, keyword: str) -> None:
    """What cannot be joined is named."""
    with pytest.raises(UnsupportedError) as refused:
        branches(schema, Document(schema))
    assert refused.value.keyword == keyword
