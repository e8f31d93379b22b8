"""Splitting bodies into JSON lines and server-sent events (HTML standard, 9.2.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.providers.body_parts import (
    BodyParts,
    EventStream,
    JsonLines,
    ServerSentEvent,
    form_of,
    leads_data,
    parse_event,
)


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"x", b"\n")), max_size=8))
def test_lines_cut_anywhere(chunks: list[bytes]) -> None:
    """Lines end with a line feed, whatever the chunks; what stands behind the last one is the rest."""
    parts = JsonLines()
    lines = [line for chunk in chunks for line in parts.split(chunk)]
    body = b"".join(chunks)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert parts.pending == body.rpartition(b"\n")[2]
    assert b"".join([*lines, parts.take_rest()]) == body
    assert parts.take_rest() == b""


def test_a_whole_body_is_one_part() -> None:
    """Nothing in it is complete before its end."""
    parts = BodyParts()
    assert [parts.split(b'{"a":\n\n'), parts.split(b"1}")] == [[], []]
    assert (parts.pending_bytes, parts.take_rest(), parts.pending_bytes) == (9, b'{"a":\n\n1}', 0)


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("text/event-stream; charset=utf-8", "events"),
        ("application/x-ndjson", "lines"),
        ("application/jsonl", "lines"),
        ("application/json", "whole"),
        ("", "whole"),
    ],
)
def test_forms(content_type: str, form: str) -> None:
    """What a body is says its content type."""
    assert form_of(content_type) == form


ENDS = [b"\n", b"\r", b"\r\n"]


def events(*chunks: bytes) -> list[tuple[str, bytes]]:
    """Names and data of the events of a stream that comes in these chunks."""
    stream = EventStream()
    return [(event.name, event.data) for chunk in chunks for event in stream.events(chunk)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("", b"YHOO\n+2\n10")]),
        (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
         [("", b"first event"), ("", b"second event"), ("", b" third event")]),
        (b"data\n\ndata\ndata\n\ndata:", [("", b""), ("", b"\n")]),
        (b"data:test\n\ndata: test\n\n", [("", b"test")] * 2),
        (b"event: add\ndata: 73857293\n\nevent: remove\r\ndata: 2153\r\n\r\n",
         [("add", b"73857293"), ("remove", b"2153")]),
        (b"event: nothing\n\nretry: 5\n\n", []),
        (b"\xef\xbb\xbfdata: marked\n\n\xef\xbb\xbfdata: no field\n\n", [("", b"marked")]),
        ("data: one\u2028line\u2029 of\x85text\x0b\x0c\x1c\n\n".encode(),
         [("", "one\u2028line\u2029 of\x85text\x0b\x0c\x1c".encode())]),
        (b"data: a\r\rdata: b\n\r\ndata: c\r\n\ndata: not ended\n", [("", b"a"), ("", b"b"), ("", b"c")]),
    ],
)  # fmt: skip
def test_the_standards_examples_and_line_ends(body: bytes, expected: list[tuple[str, bytes]]) -> None:
    """Fields, comments, several data lines, a byte order mark, three line ends and no other; an event needs its end."""
    assert events(body) == expected
    assert events(*[body[i : i + 1] for i in range(len(body))]) == expected


lines = st.lists(
    st.sampled_from(
        [b'data: {"a": 1}', b"data:x", b"data", b": ping", b"event: e", b"id: 7", "data: \u2028é".encode(), b""]
    ),
    max_size=12,
)


@given(lines, st.lists(st.sampled_from(ENDS), min_size=12, max_size=12), st.data())
def test_cut_anywhere_it_is_the_same(lines: list[bytes], ends: list[bytes], data: st.DataObject) -> None:
    """However the bytes arrive, the same events come, and no byte is lost."""
    body = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert events(*chunks) == events(body)
    stream = EventStream()
    parts = [part for chunk in chunks for part in stream.split(chunk)]
    assert stream.pending_bytes == len(stream.pending)
    assert b"".join([*parts, stream.take_rest()]) == body
    assert stream.pending_bytes == 0


def test_an_event_is_told_at_once() -> None:
    """The second line end of an event completes it: nothing waits for what follows."""
    stream = EventStream()
    assert stream.events(b"data: a\r\n\r") == [ServerSentEvent("", b"a")]
    assert stream.events(b"\ndata: b\n\n") == [ServerSentEvent("", b"b")]


def test_comments_are_no_events() -> None:
    """What has no data line is none."""
    assert parse_event(b": ping\n\n") is None


@pytest.mark.parametrize(
    ("lead", "leads"),
    [
        ("data: ", True),
        ("event: x\ndata: ", True),
        ("id: 7\r\ndata: ", True),
        ("data: 1\ndata: ", False),
        (": data: ", False),
        ("data", False),
        ("", False),
    ],
)
def test_what_leads_data(lead: str, leads: bool) -> None:
    """Where it is true, what stands behind it on the line is the event's data, and all of it."""
    assert leads_data(lead) == leads
    event = parse_event(f"{lead}{{}}\n\n".encode())
    assert leads == (event is not None and event.data == b"{}")
