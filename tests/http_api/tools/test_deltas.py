"""Additions to an answer."""

from __future__ import annotations

from lmtool.http_api.tools.deltas import Delta, Plain


def test_plain_text() -> None:
    """Where no tool may be called, everything is text at once, and nothing is no addition."""
    plain = Plain()
    assert list(plain.push("<tool_call>")) == [Delta("<tool_call>")]
    assert list(plain.push("")) == []
    assert list(plain.finish()) == []
