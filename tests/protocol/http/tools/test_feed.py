"""One call, as its characters come."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.http.tools.feed import CallReader

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


def read(text: str, cuts: list[int]) -> tuple[CallReader, str, str]:
    """A reader that was given the text in pieces, the arguments it told, and what it left."""
    reader, told, rest = CallReader(), "", ""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for start, end in itertools.pairwise(places):
        added, left = reader.push(text[start:end])
        told, rest = told + added, rest + left
    return reader, told, rest


@given(OBJECTS, st.text(min_size=1, max_size=8), st.lists(st.integers(0, 80)), st.booleans(), st.booleans())
def test_any_call_in_any_pieces(
    arguments: dict[str, object], name: str, cuts: list[int], last: bool, spaced: bool
) -> None:
    """Name and arguments are those of the JSON, whatever their order and however the text is cut."""
    members: dict[str, object] = {"name": name, "arguments": arguments}
    if last:
        members = dict(reversed(members.items()))
    text = json.dumps(members, indent=1 if spaced else None)
    reader, told, rest = read(text + "</tool_call>", cuts)
    assert (reader.done, reader.failed, reader.name, rest) == (True, False, name, "</tool_call>")
    assert json.loads(told) == arguments


@pytest.mark.parametrize(
    "text",
    ["no", "[1]", '{"name" 3', '{name: "a"}', '{"name": 3, "arguments": {}}', '{"arguments": {}}', '{"a": 1}', "{,"],
)
def test_what_is_no_call(text: str) -> None:
    """It is told as soon as it is certain."""
    assert read(text, [])[0].failed


def test_arguments_as_a_text() -> None:
    """Some models write the text of an object in place of the object."""
    text = json.dumps({"name": "f", "parameters": '{"a": "\\n"}', "more": [1]})
    reader, told, _ = read(text, [])
    assert (reader.name, told) == ("f", '{"a": "\\n"}')


def test_arguments_come_as_they_are_written() -> None:
    """Nobody waits for the end: each piece is told at once."""
    reader = CallReader()
    assert reader.push('{"name": "f", "arguments": {"a"')[0] == '{"a"'
    assert reader.push(": 1")[0] == ": 1"
    assert reader.push("}}") == ("}", "")
