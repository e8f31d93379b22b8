"""Events as data: what they say on the wire, and how tokens are counted."""

from __future__ import annotations

import pytest

from lmtool.trace.events import Frame, JsonText, Piece, Request, count_tokens, token_entries


def test_a_frame_is_command_space_json() -> None:
    """FORMAT.md, Content: the lead, one space, the JSON text in its style."""
    assert Frame(0, ">", 1, JsonText("GENERATE", {"a": [1, 2]}, "py")).wire() == 'GENERATE {"a": [1, 2]}'
    assert Frame(0, ">", 1, JsonText("GENERATE", {"a": [1, 2]}, "compact")).wire() == 'GENERATE {"a":[1,2]}'
    assert Frame(0, "<", 1, "TOKEN [-Infinity]").wire() == "TOKEN [-Infinity]"
    assert Frame(0, "<", 1, b"\x00").wire() == b"\x00"


def test_a_server_sent_event_ends_with_a_blank_line() -> None:
    """FORMAT.md, Content: the lead, the JSON text, two line feeds; exact text has its own ends."""
    assert (
        Piece(0, "sse", 1, JsonText("event: x\ndata: ", {"a": 1}, "compact")).wire() == b'event: x\ndata: {"a":1}\n\n'
    )
    assert Piece(0, "sse", 1, "data: [DONE]\n\n").wire() == b"data: [DONE]\n\n"
    assert Piece(0, "body", 1, JsonText("", {"a": "é"}, "compact")).wire() == '{"a":"é"}'.encode()
    assert Piece(0, "body", 1, b"\xff").wire() == b"\xff"


def test_a_request_may_have_no_body() -> None:
    """The body's bytes; none where there is none."""
    assert Request(0, 1, "GET", "/", {}).wire_body() == b""
    assert Request(0, 1, "POST", "/", {}, "x").wire_body() == b"x"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([{"token": 1}, {"token": 2}, {"finish_reason": "stop"}], 2),
        ({"token": 1}, 1),
        ([1, None, "token"], 0),
        ("token", 0),
    ],
)
def test_tokens_are_entries_with_a_token(value: object, count: int) -> None:
    """FORMAT.md, The end: entries that have a member `token`, in a list or alone."""
    assert count_tokens(Frame(0, "<", 1, JsonText("TOKEN", value, "py"))) == count


def test_other_frames_hold_no_tokens() -> None:
    """Only parsed TOKEN frames of the server count."""
    assert token_entries(Frame(0, ">", 1, JsonText("TOKEN", [{"token": 1}], "py"))) == []
    assert token_entries(Frame(0, "<", 1, JsonText("MSG", [{"token": 1}], "py"))) == []
    assert token_entries(Frame(0, "<", 1, 'TOKEN [{"token": -Infinity}]')) == []
    assert token_entries(Request(0, 1, "GET", "/", {})) == []
