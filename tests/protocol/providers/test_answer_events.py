"""The form that answers of all APIs have in common."""

from __future__ import annotations

import pytest

from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    counted_tokens,
    piece_of,
)


@pytest.mark.parametrize(
    ("text", "data", "piece"),
    [
        (" the", None, " the"),
        ("\ufffd", [240, 159], b"\xf0\x9f"),
        ("\ufffd", list("é".encode()), "é"),
        ("bytes:\\xf0\\x9F", None, b"\xf0\x9f"),
        ("bytes:\\x41", None, "A"),
        ("bytes: 3", None, "bytes: 3"),
        ("bytes:41", None, "bytes:41"),
        ("x", [300], "x"),
        ("x", ["a"], "x"),
        (5, None, ""),
    ],
)
def test_pieces(text: object, data: object, piece: str | bytes) -> None:
    """A token is its text, or its bytes where these are no text on their own, as either API tells them."""
    assert piece_of(text, data) == piece


def test_alternatives() -> None:
    """A list with an entry each, or an object by text; best first, without those that have no logprob."""
    listed = [
        {"token": "x", "logprob": -2},
        {"token": "\ufffd", "bytes": [240, 159], "logprob": -0.5},
        {"token": "y", "bytes": None, "logprob": None},
        5,
    ]
    assert ChunkToken("a", -1.0, listed).alternatives == ((b"\xf0\x9f", -0.5), ("x", -2.0))
    named = {"bytes:\\xf0\\x9f": -1.0, " a": -0.5, "b": "x"}
    assert ChunkToken("a", -1.0, named).alternatives == ((" a", -0.5), (b"\xf0\x9f", -1.0))
    assert [ChunkToken("a", -1.0, one).alternatives for one in (None, [], {}, 3)] == [()] * 4


def test_usage() -> None:
    """Counts have each API's own names; cached tokens stand in the details."""
    told = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": "x"}
    assert TokenUsage.of(told, "input_tokens", "output_tokens") == TokenUsage(5, None, 2)


@pytest.mark.parametrize(
    ("value", "failure"),
    [
        ({"error": {"message": "no", "type": "invalid", "code": None}}, AnswerFailed("no", "invalid")),
        ({"error": {"message": "no", "code": "model_not_found", "type": "x"}}, AnswerFailed("no", "model_not_found")),
        ({"type": "error", "error": {"type": "overloaded", "message": "busy"}}, AnswerFailed("busy", "overloaded")),
        ({"error": "model 'x' not found"}, AnswerFailed("model 'x' not found")),
        ({"object": "error", "message": "long", "type": "BadRequest", "code": 400}, AnswerFailed("long", "BadRequest")),
        ({"detail": "Not Found"}, AnswerFailed("Not Found")),
        ({"detail": [{"loc": ["body"]}]}, AnswerFailed('[{"loc": ["body"]}]')),
        ({"error": {"code": 7}}, AnswerFailed('{"code": 7}')),
        ({"error": None, "choices": []}, None),
        ({"choices": [], "detail": "x"}, None),
        ({}, None),
    ],
)
def test_failures(value: dict[str, object], failure: AnswerFailed | None) -> None:
    """Servers tell errors in several forms; each is found, and nothing else is."""
    assert AnswerFailed.of(value) == failure


def test_what_counts_as_a_token() -> None:
    """Each token that is named; text alone is one piece, unless it is text of tokens that the choice named before."""
    choices: set[int] = set()
    assert counted_tokens(TextDelta(0, "ab"), choices) == (ChunkToken("ab"),)
    assert counted_tokens(ToolCallDelta(0, 0, name="f", arguments="{"), choices) == (ChunkToken("f{"),)
    assert counted_tokens(TextDelta(0, ""), choices) == ()
    named = (ChunkToken("a", -0.5), ChunkToken("b", -0.5))
    assert counted_tokens(TextDelta(0, "a", named), choices) == named
    assert counted_tokens(TextDelta(0, "b"), choices) == ()
    assert counted_tokens(TextDelta(1, "b"), choices) == (ChunkToken("b"),)
