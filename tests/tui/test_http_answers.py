"""Streams of OpenAI-compatible servers: completions and chats, streamed and whole, good and failed."""

from __future__ import annotations

import math

import pytest

from lmtool.trace.events import Close, Done, Drop, Parsed, Piece, Request, Response
from lmtool.tui import answers
from tests.tui.folding import asked, chunk, fed, sse


def test_a_streamed_completion() -> None:
    """Tokens of an OpenAI-compatible server have texts and no ids; equal texts have the same number."""
    state = fed(
        asked(0.0),
        Response(0.1, 1, 200, "OK", {}),
        sse(0.2, chunk(" a", logprobs={"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5}]})),
        sse(0.3, chunk(" a")),
        sse(0.4, chunk("", finish_reason="stop")),
        Piece(0.4, "sse", 1, "data: [DONE]\n\n"),
        Done(0.5, 1),
    )
    (stream,) = state.streams
    assert (stream.label, stream.kind, stream.prompt, stream.max_tokens) == ("1/1", "TEXT", "Once", 9)
    assert state.text(stream) == " a a"
    assert len({state.tokens.ids[row] for row in stream.rows}) == 1
    assert [state.tokens.logprob(row) for row in stream.rows] == [-0.5, None]
    assert (stream.ended, stream.finish_reason) == (0.4, "stop")


def test_the_next_request_on_the_same_connection() -> None:
    """Answers come in the order of their requests."""
    done = (Response(0.1, 1, 200, "OK", {}), sse(0.1, chunk("x", finish_reason="stop")), Done(0.1, 1))
    state = fed(asked(0.0), *done, asked(0.1), *done)
    assert [(s.label, state.text(s), s.finish_reason) for s in state.streams] == [
        ("1/1", "x", "stop"),
        ("1/2", "x", "stop"),
    ]


CHAT = {
    "choices": [
        {
            "index": 0,
            "delta": {"content": "Hi"},
            "logprobs": {
                "content": [
                    {
                        "token": "H",
                        "logprob": -0.1,
                        "top_logprobs": [{"token": "J", "logprob": -2}, {"token": "H", "logprob": -0.1}],
                    },
                    {"token": "i", "logprob": -0.2, "top_logprobs": []},
                ]
            },
            "finish_reason": None,
        }
    ]
}


def test_a_streamed_chat() -> None:
    """Each entry of `logprobs.content` is a token, also of several in a chunk; the last message is the prompt."""
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    piece = sse(0.2, CHAT)
    state = fed(
        Request(0.0, 1, "POST", "/v1/chat/completions", {}, Parsed("", {"messages": messages}, "py")),
        Response(0.1, 1, 200, "OK", {}),
        sse(0.1, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}),
        piece,
    )
    (stream,) = state.streams
    assert (stream.kind, stream.prompt, state.text(stream), len(stream.rows)) == ("CHAT", "Hello", "Hi", 2)
    assert [answers.alternatives(top) for top in answers.tops(piece)] == [(("H", -0.1), ("J", -2.0)), ()]


def test_several_choices() -> None:
    """Each choice is a stream of its own, begun with the request."""
    state = fed(asked(0.0, n=2), Response(0.1, 1, 200, "OK", {}), sse(0.2, chunk("b", 1)), sse(0.3, chunk("a", 0)))
    assert [(s.label, s.began, state.text(s)) for s in state.streams] == [("1/1", 0.0, "a"), ("1/1.1", 0.0, "b")]


def test_an_answer_that_is_not_streamed() -> None:
    """A whole answer brings all its tokens at once."""
    value = chunk(
        "ab",
        logprobs={"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": None},
        finish_reason="length",
    )
    state = fed(
        asked(0.0), Response(0.1, 1, 200, "OK", {}), Piece(0.2, "body", 1, Parsed("", value, "py")), Done(0.2, 1)
    )
    (stream,) = state.streams
    assert (state.text(stream), stream.finish_reason, state.tokens.logprob(0)) == ("ab", "length", None)
    assert answers.tops(Piece(0.2, "body", 1, Parsed("", value, "py"))) == [(), ()]


def test_json_spelled_otherwise() -> None:
    """A server may write JSON as no style of a trace does: its events are kept as text, and understood."""
    text = 'data: {"choices":[{"index":0,  "text":"x", "finish_reason":"stop"}]}\r\n\r\n'
    state = fed(asked(0.0), Response(0.1, 1, 200, "OK", {}), Piece(0.2, "sse", 1, text))
    assert [(state.text(s), s.finish_reason) for s in state.streams] == [("x", "stop")]


@pytest.mark.parametrize(
    "content", ["data: [DONE]\n\n", ": ping\n\n", "data: {\n\n", b"\xff", Parsed("data: ", [1], "py")]
)
def test_events_that_bring_nothing(content: str | bytes | Parsed) -> None:
    """Comments, the last event, and what cannot be read bring no token."""
    assert answers.chunk(Piece(0.0, "sse", 1, content)) == []


def test_an_error_status() -> None:
    """A refused request says its status where the body says no more, and the body's message where it does."""
    no = Response(0.1, 1, 503, "Service Unavailable", {})
    state = fed(asked(0.0), no, Piece(0.2, "body", 1, "<html>"), Done(0.3, 1))
    assert (state.streams[0].error, state.streams[0].ended) == ("HTTP 503 Service Unavailable", 0.3)
    state = fed(asked(0.0), no, Piece(0.2, "body", 1, Parsed("", {"error": {"message": "busy"}}, "py")), Done(0.3, 1))
    assert (state.streams[0].error, state.streams[0].ended) == ("busy", 0.2)


def test_an_answer_that_stops_early() -> None:
    """Without a finish_reason the stream is not finished, whether the answer or the connection ended."""
    begin = (asked(0.0), Response(0.1, 1, 200, "OK", {}), sse(0.2, chunk("x")))
    assert "answer ended" in str(fed(*begin, Done(0.3, 1)).streams[0].error)
    assert "connection ended" in str(fed(*begin, Drop(0.3, 1)).streams[0].error)


def test_other_requests() -> None:
    """Requests that generate nothing are no streams, and do not disturb the order of answers."""
    state = fed(
        Request(0.0, 1, "GET", "/v1/models", {}),
        asked(0.1),
        Response(0.2, 1, 200, "OK", {}),
        Piece(0.2, "body", 1, Parsed("", {"data": []}, "py")),
        Done(0.2, 1),
        Response(0.3, 1, 200, "OK", {}),
        sse(0.3, chunk("x", finish_reason="stop")),
        Done(0.3, 1),
        Close(0.4, 1, "client"),
        sse(0.5, chunk("y")),
    )
    assert [(s.label, state.text(s)) for s in state.streams] == [("1/2", "x")]


def test_odd_members() -> None:
    """Whatever a chunk holds in place of what is expected counts as absent."""
    value = {
        "choices": [{"index": "0", "logprobs": {"content": [5, {"token": 7, "logprob": "x", "top_logprobs": 3}]}}, 9]
    }
    (first, second) = answers.chunk(sse(0.0, value))
    assert (first.choice, first.token, second.text) == (0, False, "7")
    assert math.isnan(second.logprob)
