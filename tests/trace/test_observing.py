"""Messages of the wire as content: never a byte lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace import styles
from lmtool.trace.events import Frame, Parsed, Piece, Request
from lmtool.trace.observing import body_content, content_of, sse_content
from tests.trace.strategies import style, text, values

texts = text | st.builds(lambda lead, value, name: f"{lead} {styles.write(value, name)}", text, values, style)


@given(texts | st.binary(max_size=20), style)
def test_a_message_comes_back(message: str | bytes, name: styles.Style) -> None:
    """FORMAT.md, Content: whatever was sent, the frame writes the same bytes again."""
    assert Frame(0, ">", 1, content_of(message, name)).wire() == message


@given(texts.map(str.encode) | st.binary(max_size=30), style)
def test_bodies_and_events_come_back(body: bytes, name: styles.Style) -> None:
    """The same for bodies and for server-sent events, whole or not."""
    assert Request(0, 1, "POST", "/", {}, body_content(body, name)).wire_body() == body
    for block in (body, b"data: " + body + b"\n\n", b"event: x\ndata: " + body + b"\n\n", b"data: " + body):
        assert Piece(0, "sse", 1, sse_content(block, name)).wire() == block


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ('TOKEN [{"a": 1}]', Parsed("TOKEN", [{"a": 1}], "py")),
        ('TOKEN [{"a":1}]', Parsed("TOKEN", [{"a": 1}], "compact")),
        ('TOKEN [{"a":-Infinity}]', 'TOKEN [{"a":-Infinity}]'),
        ('TOKEN  [{"a": 1}]', 'TOKEN  [{"a": 1}]'),
        ('GENERATE {"x": {"$blob": "ab"}}', 'GENERATE {"x": {"$blob": "ab"}}'),
        ("hello", "hello"),
        (b"TOKEN []", b"TOKEN []"),
    ],
)
def test_what_is_taken_apart(message: str | bytes, content: object) -> None:
    """Command, one space, JSON in a known style; everything else is exact."""
    assert content_of(message, "py") == content


def test_events_of_a_stream_are_taken_apart() -> None:
    """The JSON after `data: `; `[DONE]` is no JSON and stays text."""
    assert sse_content(b'data: {"a":1}\n\n', "compact") == Parsed("data: ", {"a": 1}, "compact")
    assert sse_content(b'event: m\ndata: {"a":1}\n\n', "compact") == Parsed("event: m\ndata: ", {"a": 1}, "compact")
    assert sse_content(b"data: [DONE]\n\n", "py") == "data: [DONE]\n\n"
    assert sse_content(b": ping\n\n", "py") == ": ping\n\n"
