"""Events as data: what they say on the wire, and how tokens are counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.events import (
    STYLES,
    Frame,
    JsonText,
    Piece,
    Request,
    Style,
    count_tokens,
    parse_body,
    parse_frame,
    parse_sse_event,
    read_json,
    style_named,
    token_entries,
    write_json,
)
from tests.trace.strategies import style, text, values


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


@given(values, style)
def test_what_a_style_writes_is_read_in_a_style(value: object, name: Style) -> None:
    """A text written in a style is read to a value that writes the same text again."""
    written = write_json(value, name)
    found = read_json(written, name)
    assert found is not None
    assert write_json(*found) == written
    assert found[1] == name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("py", r'{"a": [1, 2.0], "\u00e9": "\ud83d\ude42 \u007f / \" \\ \b\f\n\r\t \u001f"}'),
        ("compact", '{"a":[1,2.0],"é":"🙂 \x7f / \\" \\\\ \\b\\f\\n\\r\\t \\u001f","f":1e-05}'),
        ("msgspec", '{"a":[1,2.0],"é":"🙂 \x7f / \\" \\\\ \\b\\f\\n\\r\\t \\u001f","f":0.00001}'),
        ("py", "[0.0001, 1e-05, 1000000000000000.0, 1e+16, -0.0, 123456789012345678901234567890]"),
        ("msgspec", "[0.00001,1e-6,1000000000000000.0,1e16,-0.0,1.5e-7,123456789012345678901234567890]"),
    ],
)
def test_each_style_spells_as_documented(name: Style, written: str) -> None:
    """FORMAT.md, Styles: separators, escapes and floats of each name."""
    found = read_json(written, "py")
    assert found is not None
    assert found[1] == name


@pytest.mark.parametrize(
    "text",
    [
        '{"logprob": -Infinity}',
        "[NaN]",
        '{"a": 1, "a": 2}',
        '{"a" : 1}',
        " {}",
        "{} ",
        "1E5",
        "[1.50]",
        "1e400",
        r'"\ud800"',
        "",
        "{",
        "[" * 100_000,
        "[1,2, 3]",
    ],
)
def test_what_no_style_writes_is_told(text: str) -> None:
    """A text that cannot be written again byte for byte has no style: it must be kept as it is."""
    assert read_json(text, "py") is None


@pytest.mark.parametrize("name", STYLES)
def test_the_preferred_style_wins(name: Style) -> None:
    """A text that several styles write is given the preferred one."""
    assert read_json('{"a":1}' if name != "py" else '{"a": 1}', name) == ({"a": 1}, name)
    assert read_json("[]", name) == ([], name)


def test_names() -> None:
    """Only the documented names are styles."""
    assert style_named("compact") == "compact"
    assert style_named("js") is None
    assert style_named(None) is None


texts = text | st.builds(lambda lead, value, name: f"{lead} {write_json(value, name)}", text, values, style)


@given(texts | st.binary(max_size=20), style)
def test_a_message_comes_back(message: str | bytes, name: Style) -> None:
    """FORMAT.md, Content: whatever was sent, the frame writes the same bytes again."""
    assert Frame(0, ">", 1, parse_frame(message, name)).wire() == message


@given(texts.map(str.encode) | st.binary(max_size=30), style)
def test_bodies_and_events_come_back(body: bytes, name: Style) -> None:
    """The same for bodies and for server-sent events, whole or not."""
    assert Request(0, 1, "POST", "/", {}, parse_body(body, name)).wire_body() == body
    for block in (body, b"data: " + body + b"\n\n", b"event: x\ndata: " + body + b"\n\n", b"data: " + body):
        assert Piece(0, "sse", 1, parse_sse_event(block, name)).wire() == block


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ('TOKEN [{"a": 1}]', JsonText("TOKEN", [{"a": 1}], "py")),
        ('TOKEN [{"a":1}]', JsonText("TOKEN", [{"a": 1}], "compact")),
        ('TOKEN [{"a":-Infinity}]', 'TOKEN [{"a":-Infinity}]'),
        ('TOKEN  [{"a": 1}]', 'TOKEN  [{"a": 1}]'),
        ('GENERATE {"x": {"$blob": "ab"}}', 'GENERATE {"x": {"$blob": "ab"}}'),
        ("hello", "hello"),
        (b"TOKEN []", b"TOKEN []"),
    ],
)
def test_what_is_taken_apart(message: str | bytes, content: object) -> None:
    """Command, one space, JSON in a known style; everything else is exact."""
    assert parse_frame(message, "py") == content


def test_events_of_a_stream_are_taken_apart() -> None:
    """The JSON after `data: `; `[DONE]` is no JSON and stays text."""
    assert parse_sse_event(b'data: {"a":1}\n\n', "compact") == JsonText("data: ", {"a": 1}, "compact")
    assert parse_sse_event(b'event: m\ndata: {"a":1}\n\n', "compact") == JsonText(
        "event: m\ndata: ", {"a": 1}, "compact"
    )
    assert parse_sse_event(b"data: [DONE]\n\n", "py") == "data: [DONE]\n\n"
    assert parse_sse_event(b": ping\n\n", "py") == ": ping\n\n"
