"""Unique names in JSON objects: the cursor that follows a text, and the tokens that are masked."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError, ServerError
from lmtool.inference.guide.unique_names import MEMBER, NAME, OUTSIDE, STRING, VALUE, JsonCursor
from tests.inference.guide import awkward

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


OPEN = {"type": "object"}
FEW = {"type": "object", "patternProperties": {"^(a|b[0-9]*)$": {"const": 1}}, "additionalProperties": False}


@pytest.fixture(scope="module")
def backend():
    """Over the awkward vocabulary."""
    made = awkward.backend()
    yield made
    made.close()


def begun(backend, schema, text, **options):
    """A guide that has followed a text byte by byte."""
    guide = backend.compile(constraint.json_schema(schema, **options)).guide()
    for byte in text.encode():
        guide.advance(next(at for at in range(len(awkward.PARTS) + 257) if piece(backend, at) == bytes((byte,))))
    assert guide.error() is None, guide.error()
    return guide


def piece(backend, token):
    return b"" if token == awkward.EOS else backend.tokenizer.decode_bytes([token])


def pieces(backend, guide):
    """The bytes of all tokens that may come next, as the library says, and as the guide says."""
    size = backend.tokenizer.vocab_size
    mask = np.zeros((2, (size + 31) // 32), np.int32)
    mask[0] = np.frombuffer(guide.matcher.compute_bitmask(), np.int32)[: mask.shape[1]]
    mask[1] = mask[0]
    guide.forbid_repeats(mask[1].view(np.uint32))
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, :size]
    return [{piece(backend, token) for token in np.flatnonzero(row)} for row in bits]


@pytest.mark.parametrize("any_whitespace", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "{", '{"', '{"a', '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,"', '{"a":1,"a', '{"a":1,"b', '{"a":1,"b":2,"',
        '{"a":1,"ab":"', '{"a":1,"ab":"x', '{"a":1,"ab":[', '{"a":1,"ab":{"a":1', '{"a":1,"ab":{"a":1,"', '[{"a":1},{"',
        '{"":1,"', '{"q\\"t":1,"q', '{"a":1,"b\\', '{"a":1,"\\u', '{"a":1,"\\u00', '{"a":1,"\\u000', '"a', "[1",
    ],
)  # fmt: skip
def test_exactly_the_tokens_that_repeat(backend, text, any_whitespace):
    """Of what the library allows, all is left but the tokens that write a name twice, or spell one in a second way."""
    guide = begun(backend, {"properties": {"zz": {"type": "integer"}}}, text, any_whitespace=any_whitespace)
    before, after = pieces(backend, guide)
    cursor = JsonCursor()
    assert cursor.feed(text.encode())
    assert after == {data for data in before if cursor.copy().feed(data)}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"', {b"a", b'a"', b'a":', b"b", b'b":', b'b0":', b"b1", b"b12"}),
        ('{"a":1,"', {b"b", b'b":', b'b0":', b"b1", b"b12"}),
        ('{"a":1,"b', {b'"', b'":1,"', *(str(digit).encode() for digit in range(10)), b"61"}),
        ('{"a":1,"b":1,"b', {*(str(digit).encode() for digit in range(10)), b"61"}),
    ],
)
def test_no_way_into_a_name_that_must_repeat(backend, text, left):
    """A beginning that only names lead on from that the object has is not allowed either."""
    _, after = pieces(backend, begun(backend, FEW, text))
    assert after == left


def test_no_comma_behind_the_last_name(backend):
    """Where all names that there are have come, the object ends."""
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"enum": [1, 12]}}, "additionalProperties": False}
    _, one = pieces(backend, begun(backend, schema, '{"a":1'))
    _, both = pieces(backend, begun(backend, schema, '{"a":1,"b":1'))
    assert one == {b"2", b",", b',"', b',"b":', b"}"}
    assert both == {b"2", b"}"}
    _, inner = pieces(backend, begun(backend, {"items": schema}, '[{"a":1,"b":1'))
    assert inner == {b"2", b"}"}


def test_an_object_that_needs_another_name(backend):
    """Is an error, and not an answer that is not valid."""
    two = {"minProperties": 2}
    schema = {"allOf": [{**FEW, "patternProperties": {"^a$": {"const": 1}}}, two]}
    guide = begun(backend, schema, '{"a":1')
    pieces(backend, guide)
    assert isinstance(guide.error(), ConstraintError)
    assert "already has every name" in str(guide.error())


def test_long_names_cost_little(backend):
    """However long the way to a name is, few places are looked at; what that misses is an error of its stream."""
    schema = {"type": "object", "patternProperties": {"^a{1500}$": {"const": 1}}, "additionalProperties": False}
    name, began = "a" * 1500, time.process_time()
    _, after = pieces(backend, begun(backend, schema, '{"' + name + '":1'))
    assert b"," in after
    assert time.process_time() - began < 2
    guide = begun(backend, schema, '{"' + name + '":1,"' + name)
    pieces(backend, guide)
    assert "already has every name" in str(guide.error())


def test_what_is_forced(backend):
    """Tokens that must follow are told up to the one that would repeat a name."""
    schema = {"allOf": [{**FEW, "patternProperties": {"^a$": {"const": 1}}}, {"minProperties": 2}]}
    guide = begun(backend, schema, '{"')
    forced = guide.forced()
    assert b"".join(piece(backend, token) for token in forced) in {b'a":1,"', b'a":1,"a'}
    for token in forced:
        guide.advance(token)
    assert guide.error() is None


def test_what_is_drawn_beside_the_mask(backend):
    """A token that repeats a name is an error of its stream, in a draft it is where the legal part ends."""
    guide = begun(backend, OPEN, '{"a":1,')
    repeats, other = (next(t for t in range(400) if piece(backend, t) == data) for data in (b'"a":', b'"id":1'))
    assert guide.accepts([other, repeats]) == 1
    assert guide.accepts([repeats]) == 0
    copy = guide.fork()
    copy.advance(other)
    assert copy.error() is None
    guide.advance(repeats)
    assert isinstance(guide.error(), ServerError)


def test_named_properties_cannot_be_gone_round(backend):
    """A property that a schema speaks of has no second spelling by which it would be a further one."""
    guide = begun(backend, {"properties": {"a": {"type": "integer"}}}, '{"')
    before, after = pieces(backend, guide)
    assert b"\\u0061" in before
    assert b"\\u0061" not in after


def test_schemas_that_list_their_names_cost_nothing(backend):
    """There is nothing to follow."""
    closed = {"properties": {"a": {"type": "integer"}}, "additionalProperties": False, "type": "object"}
    assert backend.compile(constraint.json_schema(closed)).names is None
    assert backend.compile(constraint.json_schema(OPEN)).names is not None


def test_json_in_a_structural_tag(backend):
    """Names are followed in the parts that are JSON, and free text is free."""
    tag = {"structures": [{"begin": "<f>", "schema": OPEN, "end": "</f>"}], "triggers": ["<f>"]}
    guide = backend.compile(constraint.structural_tag(tag)).guide()
    tokens = [next(t for t in range(400) if piece(backend, t) == bytes((byte,))) for byte in b'"a":1,"a":1<f>{"a":1,']
    for token in tokens:
        guide.advance(token)
    assert guide.error() is None
    before, after = pieces(backend, guide)
    assert b'"a":' in before - after
