"""Answers read from bytes, whichever API gave them and however they are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.providers import answer_reader
from lmtool.protocol.providers.answer_events import AnswerFailed, ChoiceFinished, ChunkToken, TextDelta, TokenUsage
from lmtool.protocol.providers.answer_reader import AnswerReader, api_of
from tests.protocol.providers.answers import Written, written


@pytest.mark.parametrize(
    ("method", "path", "api"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/chat/completions/", "chat"),
        ("POST", "/openai/deployments/x/chat/completions?api-version=1", "chat"),
        ("POST", "/v1/completions", "completions"),
        ("POST", "/llm/v1/responses", "responses"),
        ("POST", "/messages", "messages"),
        ("POST", "/api/generate", "ollama"),
        ("POST", "/v1/chat", "cohere_v1"),
        ("POST", "/proxy/v2/chat/", "cohere_v2"),
        ("POST", "/v1/language/default/chat", "unified"),
        ("POST", "/proxy/v1/default/chat/", "unified"),
        ("GET", "/v1/language/default/chat", None),
        ("POST", "/v1/language/default/other/chat", None),
        ("GET", "/v1/responses/resp_1", None),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/embeddings", None),
        ("POST", "/v1/messages/count_tokens", None),
    ],
)
def test_apis_by_their_paths(method: str, path: str, api: str | None) -> None:
    """With and without /v1, wherever a proxy puts them; what generates nothing has none."""
    assert api_of(method, path) == api


@given(written(), st.data())
def test_every_api_cut_anywhere(answer: Written, data: st.DataObject) -> None:
    """The tokens, texts and endings that were written are read, choice by choice, wherever the bytes are cut."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer.body)), max_size=5)))
    reader = AnswerReader(answer.api, answer.form)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(answer.body)], strict=True):
        found += reader.feed(answer.body[start:end])
    found += reader.end()
    assert not [event for event in found if isinstance(event, AnswerFailed)]
    for number, choice in enumerate(answer.choices):
        deltas = [event for event in found if isinstance(event, TextDelta) and event.choice == number]
        assert "".join(event.text for event in deltas) == choice.text
        tokens = [(token.piece, token.logprob) for event in deltas for token in event.tokens]
        assert tokens == (choice.tokens if answer.logprobs else [])
        endings = [event.reason for event in found if isinstance(event, ChoiceFinished) and event.choice == number]
        assert endings == [choice.reason]


def test_errors_inside_a_stream() -> None:
    """What came before an error stays; the error is told in the server's words."""
    reader = AnswerReader("chat", "events")
    body = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: {"error":{"message":"lost"}}\n\n'
    assert reader.feed(body) == [TextDelta(0, "a"), AnswerFailed("lost")]


def test_what_says_nothing() -> None:
    """Comments, the end mark and what is no JSON bring nothing, and nothing raises."""
    reader = AnswerReader("completions", "events")
    assert reader.feed(b": ping\n\ndata: [DONE]\n\ndata: {\n\ndata: [1]\n\n\xff\xfe\n\n") == []
    assert reader.end() == []


def test_a_part_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: a part above the limit is an error, and what follows is not read."""
    monkeypatch.setattr(answer_reader, "LARGEST_PART", 100)
    reader = AnswerReader("chat", "events")
    (failed,) = reader.feed(b"data: " + b"x" * 200)
    assert isinstance(failed, AnswerFailed)
    assert "more than 100 bytes" in failed.message
    assert reader.malformed
    assert reader.feed(b'\n\ndata: {"error": "later"}\n\n') == []


def test_a_whole_answer_is_read_when_it_is_complete() -> None:
    """With its last brace; no sooner, and not again at its end."""
    answer = json.dumps(
        {"choices": [{"text": "a}", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    ).encode()
    reader = AnswerReader("completions", "whole")
    expected = [TextDelta(0, "a}"), ChoiceFinished(0, "stop"), TokenUsage(None, 1)]
    place = answer.index(b"}") + 1
    assert reader.feed(answer[:place]) == []
    assert (reader.feed(answer[place:]), reader.end()) == (expected, [])
    spaced = AnswerReader("completions", "whole")
    assert (spaced.feed(answer), spaced.feed(b" ")) == (expected, [])
    short = AnswerReader("completions", "whole")
    assert (short.feed(b'{"choices":[{"text":"a"}'), short.feed(b"]}"), short.end()) == ([], [], [TextDelta(0, "a")])


def test_a_part_is_read_for_itself() -> None:
    """What a later event brings can be read without those before it."""
    reader = AnswerReader("responses", "events")
    token = {"token": "a", "logprob": -1}
    event = {"type": "response.output_text.delta", "delta": "a", "logprobs": [token]}
    tail = b'id":"cut off"}\n\n'
    assert reader.feed(tail + b"data: " + json.dumps(event).encode() + b"\n\n") == [
        TextDelta(0, "a", (ChunkToken("a", -1.0),))
    ]
