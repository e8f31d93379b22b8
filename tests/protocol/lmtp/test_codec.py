"""Frames to messages and back, and the JSON in them."""

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import LocalProtocolError
from lmtool.core.types import GenerateRequest
from lmtool.protocol.lmtp import codec, json_text
from lmtool.protocol.lmtp.codec import BrokenFrameError, RefusedFrameError
from lmtool.protocol.lmtp.config import MAX_FRAME_BYTES
from lmtool.protocol.lmtp.json_text import JsonTextError
from lmtool.protocol.lmtp.messages import (
    Cancel,
    Generate,
    ModelInfoRequest,
    RequestFailed,
    UnknownMessage,
)


@pytest.mark.parametrize(
    "frame",
    [
        'CANCEL {"stream_id":1}',
        'CANCEL    {"stream_id": 1}',
        'CANCEL {"stream_id": 1}\n',
        'CANCEL \t{ "stream_id" :1 }\r\n',
    ],
)
def test_whitespace_is_harmless(frame):
    """Extra spaces and a trailing newline mean nothing."""
    assert codec.decode_request(frame) == Cancel("1")


@pytest.mark.parametrize(
    ("frame", "command", "stream_id"),
    [
        ("", "?", None),
        ("GENERATE", "?", None),
        ("GENERATE{}", "?", None),
        (b"GENERATE {}", "?", None),
        ("GENERATE ", "GENERATE", None),
        ("GENERATE {", "GENERATE", None),
        ("GENERATE []", "GENERATE", None),
        ('GENERATE [{"stream_id": 1}]', "GENERATE", None),
        ("GENERATE {}", "GENERATE", None),
        ('GENERATE {"stream_id": null}', "GENERATE", None),
        ('GENERATE {"stream_id": [1, 2]}', "GENERATE", "[1,2]"),
        ('generate {"stream_id": 1}', "generate", "1"),
        (' GENERATE {"stream_id": 1}', "", None),
        ('\x1b[31m {"stream_id": 1}', "\\x1b[31m", "1"),
    ],
)
def test_refused_frames(frame, command, stream_id):
    """A refused frame tells as much as is known of its owner, and its command without control characters."""
    with pytest.raises(RefusedFrameError) as refused:
        codec.decode_request(frame)
    assert (refused.value.command, refused.value.stream_id) == (command, stream_id)
    assert refused.value.message.isprintable()


@given(st.text() | st.binary())
def test_no_frame_of_a_client_surprises(frame):
    """Whatever a client sends is a message or a refusal."""
    with pytest.raises(RefusedFrameError):
        codec.decode_request(frame)


@given(st.text() | st.binary() | st.text().map("TOKEN ".__add__) | st.text().map("MSG ".__add__))
def test_no_frame_of_a_server_surprises(frame):
    """Whatever a server sends is a list of messages or broken."""
    with contextlib.suppress(BrokenFrameError):
        assert isinstance(codec.decode_answer(frame), list)


def test_requests_are_frames():
    """A request is written as command, space, JSON."""
    assert codec.encode_request(ModelInfoRequest("1", "m")) == 'MODEL_INFO {"model":"m","stream_id":1}'


def test_unknown_commands_are_known_as_that():
    """A client passes over commands that it does not know."""
    assert codec.decode_answer("HELLO {}") == [UnknownMessage("HELLO")]
    assert codec.decode_answer('MSG [{"stream_id": 1, "error": "x"}]') == [RequestFailed("1", "x")]


@pytest.mark.parametrize("frame", [b"TOKEN []", "TOKEN", "TOKEN {", "MSG [1]"])
def test_broken_frames(frame):
    """A frame that says nothing about anyone is broken."""
    with pytest.raises(BrokenFrameError):
        codec.decode_answer(frame)


def test_no_frame_is_longer_than_every_server_reads():
    """It would cost the connection, and all that runs on it."""
    fits = Generate(GenerateRequest("1", "x" * (MAX_FRAME_BYTES - 60)))
    assert len(codec.encode_request(fits)) <= MAX_FRAME_BYTES
    with pytest.raises(LocalProtocolError, match=r"has \d+ bytes; a server reads at most 4194304"):
        codec.encode_request(Generate(GenerateRequest("1", "é" * (MAX_FRAME_BYTES // 2))))


def test_a_mask_is_passed_on_as_it_came():
    """Not number by number: it may have 100,000 of them."""
    mask = ",".join(f'"{number}":-100' for number in range(1000))
    frame = f'GENERATE {{"stream_id":1,"prompt":[1],"logit_bias":{{{mask}}}}}'
    again = codec.encode_request(codec.decode_request(frame))
    assert f'"logit_bias":{{{mask}}}' in again
    assert codec.decode_request(again) == codec.decode_request(frame)


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
