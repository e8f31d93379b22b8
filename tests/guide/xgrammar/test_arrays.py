"""Arrays of a schema."""

from __future__ import annotations

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from tests.guide.xgrammar.judging import allows

ITEM = st.sampled_from([False, {"type": ["integer", "null"]}, {"type": "integer"}, {"type": "string"}])
VALUES = st.lists(st.sampled_from([1, "a", None]), max_size=5)


@given(
    st.lists(ITEM, max_size=3),
    ITEM,
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 4),
    VALUES,
)
def test_arrays(first: list[object], items: object, least: int | None, most: int | None, value: list[object]) -> None:
    """Exactly the arrays that the schema allows: fixed places, all further items, counts."""
    given_ = {"prefixItems": first or None, "items": items, "minItems": least, "maxItems": most}
    schema = {"type": "array", **{name: part for name, part in given_.items() if part is not None}}
    assert allows(schema, value) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_items_as_a_list() -> None:
    """The older spelling of fixed places."""
    schema = {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}}
    assert allows(schema, [1, "a"])
    assert not allows(schema, [1, 2])
    assert not allows(schema, ["a"])
