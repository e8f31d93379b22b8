"""Cohere's chat, versions 1 and 2: what the official client cannot be asked about."""

from __future__ import annotations

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage, ToolCall
from lmtool.protocol.providers import cohere
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from lmtool.protocol.providers.chat_request import ChatRequest

USER = ChatMessage("user", "Weather?")
CALLS = ChatMessage("assistant", "", (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "[]")))
ANSWERS = (ChatMessage("tool", '{"sky": "grey"}', tool_call_id="a"), ChatMessage("tool", "12", tool_call_id="b"))
RESULTS = [
    {"call": {"name": "f", "parameters": {"x": 1}}, "outputs": [{"sky": "grey"}]},
    {"call": {"name": "g", "parameters": {"INVALID_JSON": "[]"}}, "outputs": [{"output": "12"}]},
]
CALLED = {
    "role": "CHATBOT",
    "message": "",
    "tool_calls": [{"name": "f", "parameters": {"x": 1}}, {"name": "g", "parameters": {"INVALID_JSON": "[]"}}],
}


@pytest.mark.parametrize(
    ("messages", "parameters", "expected"),
    [
        ((USER,), {}, {"message": "Weather?"}),
        (
            (ChatMessage("system", "A"), ChatMessage("developer", "B"), USER, ChatMessage("system", "C"), USER),
            {},
            {
                "preamble": "A\n\nB",
                "chat_history": [{"role": "USER", "message": "Weather?"}, {"role": "SYSTEM", "message": "C"}],
                "message": "Weather?",
            },
        ),
        (
            (ChatMessage("system", "A"), USER),
            {"preamble": "P"},
            {"preamble": "P", "chat_history": [{"role": "SYSTEM", "message": "A"}], "message": "Weather?"},
        ),
        (
            (USER, CALLS, *ANSWERS),
            {},
            {
                "message": "",
                "chat_history": [{"role": "USER", "message": "Weather?"}, CALLED],
                "tool_results": RESULTS,
            },
        ),
        (
            (USER, CALLS, *ANSWERS, USER),
            {},
            {
                "message": "Weather?",
                "chat_history": [
                    {"role": "USER", "message": "Weather?"},
                    CALLED,
                    {"role": "TOOL", "tool_results": RESULTS},
                ],
            },
        ),
    ],
)
def test_a_conversation_in_version_1(
    messages: tuple[ChatMessage, ...], parameters: dict[str, object], expected: dict[str, object]
) -> None:
    """The last user's turn or the answers of tools stand alone; no system turn is lost."""
    body = cohere.write_chat_v1(ChatRequest(messages), "m", parameters)
    assert body == {"model": "m", "stream": False, **expected}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((USER, ChatMessage("assistant", "It")), "the last message is from assistant"),
        ((ChatMessage("system", "A"),), "the last message is from system"),
        ((USER, *ANSWERS), "a tool answers the call 'a', which no message before it makes"),
    ],
)
def test_what_version_1_cannot_express(messages: tuple[ChatMessage, ...], said: str) -> None:
    """It is refused before anything is sent."""
    with pytest.raises(RequestError, match=said):
        cohere.write_chat_v1(ChatRequest(messages), "m", {})


def test_what_version_2_cannot_express() -> None:
    """A tool cannot be demanded by name; developers and preambles are systems."""
    tool = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(RequestError, match="required"):
        cohere.write_chat_v2(ChatRequest((USER,), tools=(tool,), tool_choice="named", tool_name="f"), "m", {})
    body = cohere.write_chat_v2(ChatRequest((ChatMessage("developer", "A"), USER)), "m", {})
    turns = [{"role": "system", "content": "A"}, {"role": "user", "content": "Weather?"}]
    assert body["messages"] == turns
    body = cohere.write_chat_v2(ChatRequest((USER,)), "m", {"preamble": "A", "k": 1})
    assert body == {"model": "m", "messages": turns, "k": 1, "stream": False}


def test_forms_of_the_text() -> None:
    """JSON has one type, with a schema or without; each version has its own name for the schema."""
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    chat = ChatRequest((USER,), response_format=form)
    expected = {"type": "json_object", "schema": {"type": "object"}}
    assert cohere.write_chat_v1(chat, "m", {})["response_format"] == expected
    plain = {"type": "json_object"}
    assert cohere.write_chat_v2(ChatRequest((USER,), response_format=plain), "m", {})["response_format"] == plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {
                "id": "r",
                "finish_reason": "TOOL_CALL",
                "message": {
                    "tool_plan": "I will look.",
                    "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Hi"}],
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                "logprobs": [{"text": "H", "token_ids": [5], "logprobs": [-0.5]}, {"text": "i", "logprobs": [-1, -2]}],
                "usage": {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 3.0, "output_tokens": 2.0}},
            },
            [
                TextDelta(0, "I will look.", kind="reasoning"),
                TextDelta(0, "Hm", kind="reasoning"),
                TextDelta(0, "Hi", (ChunkToken("H", -0.5), ChunkToken("i"))),
                ToolCallDelta(0, 0, "c", "f", "{}"),
                TokenUsage(3, 2),
                ChoiceFinished(0, "tool_calls"),
            ],
        ),
        (
            {
                "type": "content-delta",
                "delta": {"message": {"content": {"text": "H"}}},
                "logprobs": {"text": "H", "token_ids": [5], "logprobs": [-0.5]},
            },
            [TextDelta(0, "H", (ChunkToken("H", -0.5),))],
        ),
        (
            {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I will"}}},
            [TextDelta(0, "I will", kind="reasoning")],
        ),
        (
            {"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "lost"}},
            [AnswerFailed("lost", "ERROR")],
        ),
        (
            {"type": "message-end", "delta": {"finish_reason": "TIMEOUT", "usage": {"cached_tokens": 1}}},
            [AnswerFailed("the answer ended with TIMEOUT", "TIMEOUT")],
        ),
        ({"type": "citation-start", "delta": {"message": {"citations": {}}}}, []),
        ({"type": "content-delta", "delta": 5}, []),
        ({}, []),
    ],
)
def test_answers_of_version_2(value: dict[str, object], expected: list[object]) -> None:
    """Plans and thoughts are reasoning; pieces of one token have its logprob; errors and timeouts are failures."""
    assert list(cohere.read_v2(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"event_type": "tool-calls-chunk", "text": "I will"}, [TextDelta(0, "I will", kind="reasoning")]),
        (
            {"event_type": "tool-calls-generation", "tool_calls": [{"name": "f", "parameters": {"x": 1}}]},
            [ToolCallDelta(0, 0, None, "f", '{"x": 1}')],
        ),
        (
            {"event_type": "stream-end", "finish_reason": "ERROR_TOXIC", "response": {"text": "again"}},
            [ChoiceFinished(0, "content_filter")],
        ),
        (
            {
                "event_type": "stream-end",
                "finish_reason": "ERROR_LIMIT",
                "response": {"meta": {"billed_units": {"input_tokens": 4, "output_tokens": 1}}},
            },
            [TokenUsage(4, 1), ChoiceFinished(0, "length")],
        ),
        ({"event_type": "stream-end", "finish_reason": "USER_CANCEL"},
         [AnswerFailed("the answer ended with USER_CANCEL", "USER_CANCEL")]),
        ({"text": "", "finish_reason": "STRANGE"}, [ChoiceFinished(0, "STRANGE")]),
        ({"event_type": "search-results"}, []),
    ],
)  # fmt: skip
def test_answers_of_version_1(value: dict[str, object], expected: list[object]) -> None:
    """A stream's end repeats the text, which is not read again; calls come once; counts fall back to the billed."""
    assert list(cohere.read_v1(value)) == expected
