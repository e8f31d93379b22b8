"""Where a growing JSON text stands."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.guide.json_cursor import MEMBER, NAME, OUTSIDE, STRING, VALUE, JsonCursor

NAMES = st.text(st.sampled_from('ab"\\\n\x01/é🙂'), max_size=3)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(st.sampled_from('a"\\{}[],:\n'), max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=10,
)


@given(VALUES, st.booleans(), st.integers(1, 5))
def test_any_json(value, spaced, step):
    """Whatever is JSON with each name once is followed to its end, with blanks or without, in pieces of any size."""
    text = json.dumps(value, ensure_ascii=False, separators=None if spaced else (",", ":")).encode()
    cursor = JsonCursor()
    assert all(cursor.feed(text[at : at + step]) for at in range(0, len(text), step))
    assert cursor.frame is None
    assert cursor.state == (OUTSIDE if isinstance(value, list | dict) else VALUE)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), st.data())
def test_a_name_that_comes_twice(value, data):
    """Is found where it ends, in any object; objects of their own may have the same names."""
    name = data.draw(st.sampled_from(sorted(value)))
    text = f"{json.dumps([value, value], ensure_ascii=False)[:-2]},{json.dumps(name, ensure_ascii=False)}".encode()
    cursor = JsonCursor()
    assert cursor.feed(text[:-1])
    assert not cursor.feed(text[-1:])


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        (r"a\nb", True),
        (r"a\u0001", True),
        (r"a\u001f", True),
        (r"\"\\", True),
        (r"\u0061", False),
        (r"\u000a", False),
        (r"\u001F", False),
        (r"\u0020", False),
        (r"\ud83d\ude00", False),
        (r"\/", False),
    ],
)
def test_one_spelling(name, taken):
    """A name has the spelling that `json.dumps` gives it, so that no two are the same; texts may be spelled at will."""
    assert (json.dumps(json.loads(f'"{name}"'), ensure_ascii=False) == f'"{name}"') == taken
    assert JsonCursor().feed(f'{{"{name}":'.encode()) == taken
    assert JsonCursor().feed(f'["{name}"'.encode())


def test_places():
    """A cursor knows what comes next, and its copy goes its own way."""
    cursor, seen = JsonCursor(), []
    for part in ('{"ab', '":"', "x", '","', '\\n":[1', ",", "2]", "}"):
        cursor.feed(part.encode())
        seen.append((cursor.state, cursor.name))
    assert seen == [
        (NAME, b"ab"), (STRING, b""), (STRING, b""), (NAME, b""), (VALUE, b""), (VALUE, b""), (VALUE, b""),
        (OUTSIDE, b""),
    ]  # fmt: skip
    begun = JsonCursor()
    begun.feed(b'{"a":1,')
    other = begun.copy()
    assert begun.state == MEMBER
    assert not other.feed(b'"a"')
    assert begun.feed(b'"b"')
    assert begun.frame is not None
    assert begun.frame.names == {b"a", b"b"}


def test_json_in_a_text():
    """It begins behind a marker, and ends where it is whole: what a free text says twice is no name."""
    free = b'so "a":1,"a":1 {"a":1,"a":1} <f='
    cursor = JsonCursor((b"<f=>", b"<g>"))
    assert cursor.feed(free + b'>{"a":"<g>","b":2}</f> {"a":1,"a":2} <g>[{"a":1},{"a":1}] <g>12} <f=>"x"<g>{"a":1')
    assert not cursor.copy().feed(b',"a"')
    assert cursor.feed(b',"b":2}' + free)


def test_json_that_may_begin_a_text():
    """Where the text begins with something else, that is not looked at."""
    cursor = JsonCursor((b"", b"<f>"))
    assert cursor.feed(b'no {"a":1,"a":1} <f>{"a":1')
    assert not cursor.feed(b',"a"')
    assert not JsonCursor((b"", b"<f>")).feed(b'{"a":1,"a"')
