"""The first line of a trace."""

from __future__ import annotations

import pytest

from lmtool.trace.codec import Header, HeaderError, from_json, to_json

FULL = {
    "lmtp_trace": 1,
    "created": "2026-11-20T22:00:00Z",
    "by": "lmtool 0.1",
    "at": "proxy",
    "title": "two greedy streams",
    "transport": {"kind": "websocket", "path": "/", "max_frame": 4194304},
    "model": {"name": "gpt2", "vocab_size": 50257, "eos": 50256, "tokenizer": {"name": "gpt2", "sha256": "…"}},
    "run": {"device": "cuda", "dtype": "bfloat16", "seed": None},
    "json": "compact",
    "times": "numbered",
    "redacted": ["headers"],
    "verify": {"level": "numbers", "tol_logprob": 0.05},
    "covers": ["GEN-1", "INT-2"],
}


def test_every_member_is_kept() -> None:
    """FORMAT.md, Header: reading and writing loses nothing."""
    assert to_json(from_json(FULL)) == {**FULL, "redacted": ("headers",), "covers": ("GEN-1", "INT-2")}


def test_only_the_version_is_required() -> None:
    """A missing member and null mean the same."""
    assert from_json({"lmtp_trace": 1, "title": None, "covers": None}) == Header()
    assert to_json(Header()) == {"lmtp_trace": 1, "json": "py"}


def test_unknown_members_are_kept() -> None:
    """A member that this version does not know is kept and passed over."""
    assert to_json(from_json({"lmtp_trace": 1, "weather": ["fine"]})) == {
        "lmtp_trace": 1,
        "json": "py",
        "weather": ["fine"],
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2], "not a trace header"),
        ({"log": {}}, "not a trace header"),
        ({"lmtp_trace": 2}, "version 2; this lmtool reads version 1"),
        ({"lmtp_trace": "1"}, "as an integer"),
        ({"lmtp_trace": True}, "as an integer"),
        ({"lmtp_trace": 1, "json": "js"}, "one of py, compact, msgspec"),
        ({"lmtp_trace": 1, "model": "gpt2"}, "model is 'gpt2'; expected an object"),
        ({"lmtp_trace": 1, "covers": [1]}, "covers is [1]; expected a list of strings"),
        ({"lmtp_trace": 1, "title": 3}, "title is 3; expected a string"),
        ({"lmtp_trace": 1, "times": "fast"}, "measured or numbered"),
    ],
)
def test_what_is_no_header_is_refused_with_a_reason(value: object, reason: str) -> None:
    """A wrong version or type is named with its value."""
    with pytest.raises(HeaderError) as error:
        from_json(value)
    assert reason in str(error.value)
