"""Bodies in parts that can be read on their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.providers.body_parts import BodyParts, JsonLines, form_of


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
