"""Events as text, for people and for programs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from lmtool.trace.answers import Answers
from lmtool.trace.description import describe, objects
from lmtool.trace.events import (
    Blob,
    Close,
    Done,
    Drop,
    End,
    Event,
    Frame,
    JsonText,
    Message,
    Open,
    Other,
    Piece,
    Remark,
    Request,
    Response,
    Vocab,
)
from lmtool.trace.stream_events import stream_of
from tests.trace.conftest import generate, token, tokens
from tests.trace.strategies import events


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (generate(0.5, temperature=1.2), "    0.500000  1/1     > GENERATE · m · 3 ids · temperature 1.2"),
        (
            Frame(0.5, ">", 1, 'GENERATE {"messages": [{"role": "user", "content": "Hi"}], "stream_id": 1}'),
            '    0.500000  1/1     > GENERATE · user "Hi"',
        ),
        (
            Frame(
                0.5,
                ">",
                1,
                'GENERATE {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content":'
                ' [{"type": "text", "text": "What is "}, {"type": "text", "text": "it?"}]}], "stream_id": 1}',
            ),
            '    0.500000  1/1     > GENERATE · 2 messages, user "What is it?"',
        ),
        (tokens(0.5, token(11)), "    0.500000  1/1     <     11 · p .607"),
        (tokens(0.5, token(11, text="é\n")), '    0.500000  1/1     <     11 "é\\n" · p .607'),
        (tokens(0.5, {"stream_id": 1, "error": "no"}), '    0.500000  1/1     < error · "no"'),
        (tokens(0.5, {"stream_id": 1, "finish_reason": "stop"}), "    0.500000  1/1     < stop"),
        (Open(0, 1, {"peer": "client"}), '    0.000000  1       open peer "client"'),
        (Frame(0, "<", 1, b"abc"), "    0.000000  1       < 3 bytes, binary"),
        (Frame(0, "<", 1, 'MSG [{"a"\n:1}]'), '    0.000000  1       < MSG [{"a"\\n:1}]'),
        (Close(1, 1, "client", 1000), "    1.000000  1       close by client · 1000"),
        (Drop(1, 1), "    1.000000  1       drop"),
        (Vocab(1, 0, {1: "a"}), "    1.000000  -       vocab · 1 ids"),
        (Blob(1, 0, "ab" * 32, 1), "    1.000000  -       blob abababababab"),
        (Remark(1, "mark", 0, "here"), "    1.000000  -       mark here"),
        (End(1, 8, 2, ""), "    1.000000  -       end · 8 events · 2 tokens"),
        (Response(1, 1, 200, "OK", {"content-type": "text/plain"}), "    1.000000  1       < 200 OK · text/plain"),
        (Done(1, 1), "    1.000000  1       < done"),
        (Piece(1, "sse", 1, "data: [DONE]\n\n"), "    1.000000  1       < data: [DONE]"),
        (Other(1, "weather", 1, ("fine",)), '    1.000000  1       weather ["fine"]'),
        (Close(1, 1, "client"), "    1.000000  1       close by client"),
        (Request(1, 1, "GET", "/v1/models", {}), "    1.000000  1/1     > GET /v1/models"),
    ],
)
def test_lines(event: Event, line: str) -> None:
    """Time, connection or stream, direction, what it says."""
    assert list(describe(event, Answers(stream_of))) == [line]


def test_text_of_ids_is_shown() -> None:
    """Ids have their text where the trace tells it."""
    answers = Answers(stream_of)
    list(describe(Vocab(0, 0, {5: "Hel", 6: "lo", 11: " there"}), answers))
    assert '3 ids "Hello"' in next(describe(generate(1), answers))
    assert '11 " there"' in next(describe(tokens(1, token(11)), answers))


def test_one_object_a_token() -> None:
    """Each entry of a TOKEN is an object with the fields that it had."""
    found = list(objects(tokens(0.5, token(1), token(2, 7))))
    assert [one["token"] for one in found] == [1, 2]
    assert found[1] == {"time": 0.5, "connection": 1, "event": "TOKEN", **token(2, 7)}


def test_objects_are_json_even_where_the_wire_is_not() -> None:
    """-Infinity and NaN become null; text that is no JSON at all is kept as text."""
    frame = Frame(0, "<", 1, 'TOKEN [{"token": 1, "stream_id": 1, "top_logprobs": {"1": NaN}, "logprob": -Infinity}]')
    (one,) = objects(frame)
    assert one["logprob"] is None
    assert one["top_logprobs"] == {"1": None}
    assert next(objects(Frame(0, "<", 1, "TOKEN {")))["payload"] == "TOKEN {"


@given(events)
def test_every_event_has_lines_and_objects(event: Event) -> None:
    """Any event is shown on lines that are single, and as JSON."""
    assert all("\n" not in line for line in describe(event, Answers(stream_of)))
    for one in objects(event):
        json.dumps(one, allow_nan=False)


def test_a_message_that_is_a_list_of_values() -> None:
    """A payload whose entries are no objects is shown entry by entry."""
    assert [o["payload"] for o in objects(Frame(0, "<", 1, JsonText("MSG", [1, "a"], "py")))] == [1, "a"]


def test_streams_over_http() -> None:
    """Tokens that are named have a probability; text of unknown tokens is a piece; what was cut off says so."""
    answers = Answers(stream_of)
    ask = Request(0, 1, "POST", "/v1/chat/completions", {}, JsonText("", {"messages": [{}], "n": 2}, "py"))
    named = {
        "delta": {"content": "a"},
        "logprobs": {"content": [{"token": "a", "logprob": 0}]},
        "finish_reason": "stop",
    }
    piece = {"index": 1, "delta": {"content": "bc"}}
    events_ = [
        ask,
        *[Piece(1, "sse", 1, JsonText("data: ", {"choices": [one]}, "py")) for one in (named, piece)],
        Drop(2, 1),
    ]
    assert [line[14:] for event in events_ for line in describe(event, answers)] == [
        "1/1     > POST /v1/chat/completions · 1 in the prompt · n 2",
        '1/1     < "a" · p 1.00 · stop',
        '1/1.1   < piece "bc"',
        '1/1.1   < unfinished · "the connection ended before the stream did"',
        "1       drop",
    ]


def test_requests_that_are_refused() -> None:
    """A MSG error of a stream's request is told as its end; the answer to a question as the frame that it is."""
    answers = Answers(stream_of)
    refusal = Frame(1, "<", 1, JsonText("MSG", [{"stream_id": 1, "error": "no"}], "py"))
    list(describe(generate(0), answers))
    assert next(describe(refusal, answers)).endswith('1/1     < error · "no"')


def test_messages_of_sessions():
    """An Evergreen message is one line: its actions and fragments, texts as they are, other bytes by their number."""
    fragments = [
        {"id": "q", "chunkFragment": {"metadata": {"mimetype": "text/plain"}, "data": "SGk="}, "continued": True},
        {"id": "q", "seq": 1, "chunkFragment": {"data": "/w=="}},
        {"id": "p", "childIds": ["q", "r"]},
        {"id": "r", "chunkFragment": {"ref": "file:x"}},
        {"id": "e"},
    ]
    call = {"name": "GENERATE", "inputs": [{"name": "prompt", "id": "p"}], "outputs": [{"name": "response", "id": "a"}]}
    event = Message(1.0, ">", 3, {"actions": [call], "nodeFragments": fragments})
    [line] = describe(event, Answers(stream_of))
    assert line.split("  3       ")[1] == (
        '> GENERATE(prompt=p) -> response=a · q#0 "Hi"… · q#1 "1 bytes" · p#0 [q, r] · r#0 "file:x" · e#0'
    )
    [empty] = describe(Message(1.0, "<", 3, {}), Answers(stream_of))
    assert empty.endswith("< empty message")
    [one] = objects(event)
    assert (one["event"], one["direction"], one["message"]) == ("message", ">", event.value)


def test_special_tokens_by_name() -> None:
    """A token that adds no text is shown by the name that the vocabulary gives, or by what the server says it is."""
    answers = Answers(stream_of)
    told: list[Event] = [
        Vocab(0.0, 0, {11: "a", 12: "", 13: ""}, {12: "<|im_end|>"}),
        Frame(0.0, "<", 1, JsonText("MSG", [{"model_info": {"eos_token_ids": [12, 13], "bos_token_id": None}}], "py")),
        tokens(0.1, token(11), token(12), token(13)),
    ]
    shown = [line for event in told for line in describe(event, answers)]
    assert "12 <|im_end|>" in shown[-2]
    assert "13 <|eos|>" in shown[-1]
