"""Tokens with logprobs, in every form that they come in."""

from __future__ import annotations

import pytest

from lmtool.protocol.providers.answer_events import ChunkToken, read_logprobs, token_entries


def test_an_entry_a_token() -> None:
    """Chat completions and responses: text, logprob, bytes, and alternatives."""
    top = [{"token": "x", "logprob": -2}]
    entry = {"token": "\ufffd", "bytes": [240, 159], "logprob": -0.5, "top_logprobs": top}
    token = ChunkToken(b"\xf0\x9f", -0.5, top)
    refusal = [{"token": "I", "logprob": -1}]
    assert read_logprobs({"content": [entry], "refusal": refusal}) == (token, ChunkToken("I", -1.0))
    assert token_entries([entry]) == (token,)


def test_columns() -> None:
    """Completions: four lists. An echoed prompt begins without a logprob; parts of characters are spelled out."""
    columns = {
        "tokens": ["Once", "bytes:\\xf0\\x9f", "!"],
        "token_logprobs": [None, -1.0, -0.25],
        "top_logprobs": [None, {" a": -0.5}],
        "text_offset": [0, 4, 5],
    }
    assert read_logprobs(columns) == (
        ChunkToken("Once"),
        ChunkToken(b"\xf0\x9f", -1.0, {" a": -0.5}),
        ChunkToken("!", -0.25),
    )


@pytest.mark.parametrize("value", [None, 5, {}, {"content": None}, {"content": 5}, {"tokens": None}])
def test_none(value: object) -> None:
    """Without logprobs there are no tokens."""
    assert read_logprobs(value) == ()


def test_odd_members() -> None:
    """What is not of its type counts as absent; the token still counts."""
    assert token_entries([5, {"token": 7, "logprob": "x", "bytes": ["a"]}]) == (ChunkToken(""),) * 2
