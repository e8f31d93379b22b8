"""JSON in and out: strict when written, tolerant when read."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.lmtp import json_text
from lmtool.lmtp.json_text import JsonTextError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_dump_is_read_back(value):
    """What is written is JSON for a strict reader, and the same value."""
    assert json.loads(json_text.dump(value)) == value


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_written(text):
    """Text with half a surrogate pair is written too, as valid UTF-8."""
    assert isinstance(json.loads(json_text.dump({"error": [text]}).decode()), dict)


@pytest.mark.parametrize("text", ["NaN", "[-Infinity, 1]", '{"a": Infinity}', '"\\ud800"'])
def test_load_takes_what_python_writes(text):
    """Python's own reader takes NaN, infinities and lone surrogates, and LMQL's server writes the first three."""
    read = json_text.load(text)
    assert repr(read) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "tru", "[1,]", "1 2", "[" * 100_000, "9" * 5000 + "x"])
def test_load_refuses_what_is_not_json(text):
    """Anything else is an error of one kind, however deep or long."""
    with pytest.raises(JsonTextError):
        json_text.load(text)


def test_members_keep_their_texts():
    """The members of an object come as they were written."""
    assert json_text.load_members(' {"a": 1.0, "b": [1, 2]}\n') == {"a": b"1.0", "b": b"[1, 2]"}


def test_members_that_are_not_json_keep_their_spelling():
    """A NaN is left for whoever reads the member to refuse by its name."""
    assert json_text.load_members('{"a": NaN, "b": [1, 2], "c": -Infinity}') == {
        "a": b"NaN",
        "b": b"[1,2]",
        "c": b"-Infinity",
    }


@pytest.mark.parametrize("text", ["[]", "1", "null", "NaN", '"a"', "{", ""])
def test_members_of_something_else(text):
    """Only an object has members."""
    with pytest.raises(JsonTextError):
        json_text.load_members(text)


@given(VALUES)
def test_compact_keeps_the_value(value):
    """Compact text is the same value without whitespace between its parts."""
    text = json.dumps(value, indent=2).encode()
    assert json.loads(json_text.compact(text)) == value
    assert json_text.compact(text) == json_text.compact(json_text.compact(text).encode())


@pytest.mark.parametrize(("text", "same"), [(b"1.50", "1.50"), (b" 1e3 ", "1e3"), (b'{"a" : [1, 2]}', '{"a":[1,2]}')])
def test_compact_keeps_the_spelling(text, same):
    """Numbers stay as they were written."""
    assert json_text.compact(text) == same


@pytest.mark.parametrize("text", [b"NaN", b"1e999", b'"\\ud800"', b"[" * 100_000])
def test_compact_refuses_what_a_strict_reader_refuses(text):
    """What could not be echoed into valid JSON is refused."""
    with pytest.raises(JsonTextError):
        json_text.compact(text)


def test_kinds_have_names():
    """Errors name kinds as JSON does."""
    names = [json_text.kind_of(value) for value in ({}, [], "", True, None, 1, math.pi)]
    assert names == ["an object", "an array", "a string", "a boolean", "null", "a number", "a number"]
