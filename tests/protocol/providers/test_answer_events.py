"""Answer events, token logprobs, and answers collected from events."""

from __future__ import annotations

import pytest

from lmtool.core.types import ToolCall
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChatAnswer,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    counted_tokens,
    piece_of,
    read_logprobs,
    token_entries,
)
from lmtool.protocol.providers.answer_reader import AnswerReader


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


def test_text_calls_and_usage() -> None:
    """Texts are joined by choice, arguments by call; later counts replace earlier ones, absent ones do not."""
    answer = ChatAnswer()
    answer.add(
        [
            TokenUsage(3),
            TextDelta(0, "so", kind="reasoning"),
            TextDelta(0, "He", (ChunkToken("He", -0.5),)),
            TextDelta(1, "Yo"),
            TextDelta(0, "llo"),
            ToolCallDelta(0, 1, "c", "f", '{"a"'),
            ToolCallDelta(0, 1, arguments=": 1}"),
            ToolCallDelta(0, 2, None, "g"),
            ChoiceFinished(0, "stop", "END"),
            TokenUsage(None, 7),
        ]
    )
    first = answer.choices[0]
    assert (first.content, first.reasoning, first.tokens) == ("Hello", ["so"], [ChunkToken("He", -0.5)])
    assert first.tool_calls == (ToolCall("c", "f", '{"a": 1}'), ToolCall("call_1", "g", "{}"))
    assert (first.finish_reason, first.stop) == ("tool_calls", "END")
    assert answer.choices[1].content == "Yo"
    assert answer.usage == TokenUsage(3, 7)
    assert not answer.finished
    answer.add([ChoiceFinished(1, "length")])
    assert answer.finished
    assert answer.choices[1].finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "empty", "finished", "malformed"),
    [
        (b'{"choices": []}', True, False, False),
        (b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}', True, True, False),
        (b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}', False, True, False),
        (b'{"choices": [{"message": {"content": "a"}}]}', False, False, False),
        (b"{}", True, False, False),
        (b"", True, False, False),
        (b'{"choices": [{"mess', True, False, True),
        (b"<html>busy</html>", True, False, True),
        (b"[1]", True, False, True),
        (b"null", True, False, True),
    ],
)
def test_answers_that_are_none(body: bytes, *, empty: bool, finished: bool, malformed: bool) -> None:
    """Empty, unfinished and malformed answers can be told apart."""
    reader, answer = AnswerReader("chat", "whole"), ChatAnswer()
    answer.add([*reader.feed(body), *reader.end()])
    assert (answer.empty, answer.finished, reader.malformed) == (empty, finished, malformed)


def test_the_first_failure_counts() -> None:
    """What a server says after it is not the reason."""
    answer = ChatAnswer()
    answer.add([AnswerFailed("lost", "server_error"), AnswerFailed("later")])
    assert answer.failure == AnswerFailed("lost", "server_error")


def test_malformed_streams() -> None:
    """A part that is no JSON object is malformed; comments, blank lines and OpenAI's end mark are not."""
    reader = AnswerReader("chat", "events")
    reader.feed(b': ping\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n')
    assert not reader.malformed
    reader.feed(b"data: {\n\n")
    assert reader.malformed
    lines = AnswerReader("ollama", "lines")
    lines.feed(b'{"message": {"content": "a"}}\n\n')
    assert not lines.malformed
    lines.feed(b'{"mess\n')
    assert lines.malformed
