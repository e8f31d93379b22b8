"""Frames: a command, one space, JSON."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.errors import LocalProtocolError
from lmtool.lmtp import codec
from lmtool.lmtp.codec import BrokenFrameError, RefusedFrameError
from lmtool.lmtp.messages import (
    MAX_FRAME_BYTES,
    Cancel,
    Generate,
    ModelInfoRequest,
    RequestFailed,
    Tokens,
    UnknownMessage,
)
from lmtool.types import GenerateRequest, TokenOutput


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


def test_answers_are_lists():
    """Entries are written as one list."""
    frame = codec.join("TOKEN", [b'{"token":1,"stream_id":1}', b'{"token":2,"stream_id":2}'])
    assert frame == 'TOKEN [{"token":1,"stream_id":1},{"token":2,"stream_id":2}]'
    assert codec.decode_answer(frame) == [Tokens((TokenOutput("1", 1), TokenOutput("2", 2)))]


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
