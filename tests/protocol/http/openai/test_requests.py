"""Messages of chat completion requests."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.openai.requests import chat

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(*given: Any) -> tuple[ChatMessage, ...]:
    [prompt] = chat({"messages": list(given)}).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_turns() -> None:
    """Texts and parts of text, calls and what tools answered; a developer speaks as the system."""
    assert read(
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ) == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "ab", name="me"),
        ChatMessage("assistant", "", (ToolCall("1", "f", "{}"),)),
        ChatMessage("tool", "sunny", tool_call_id="1"),
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hi", "messages[0]"),
        ({"content": "Hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["Hi"]}, None),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "Hi", "token_ids": ["a"]}, "messages[0].token_ids[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named(message: Any, param: str | None) -> None:
    """400, and the member to blame; a bare text in a list is taken for what it is."""
    if param is None:
        assert read(message)[0].content == "Hi"
        return
    with pytest.raises(ApiError) as raised:
        read(message)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        (
            {"content": "Hi", "provider_specific_fields": {"a": 1}, "thinking_blocks": [{}], "reasoning_content": "so"},
            ChatMessage("assistant", "Hi", reasoning="so"),
        ),
        ({"content": None, "refusal": "I will not."}, ChatMessage("assistant", "I will not.")),
        ({"content": None}, ChatMessage("assistant", "")),
        (
            {"content": [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Hi", "cache_control": {}}]},
            ChatMessage("assistant", "Hi", reasoning="so"),
        ),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, ChatMessage("assistant", "No.")),
        (
            {"content": None, "tool_calls": [{**CALL, "index": 0, "caller": {}, "extra_content": {"google": {}}}]},
            ChatMessage("assistant", "", (ToolCall("1", "f", "{}"),)),
        ),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}},
         ChatMessage("assistant", "", (ToolCall("", "f", "{}"),))),
        ({"content": "Hi", "tool_calls": [CALL], "token_ids": [5, 6]}, ChatMessage("assistant", "Hi", tokens=(5, 6))),
    ],
)  # fmt: skip
def test_an_answer_that_is_sent_back(message: Any, turn: ChatMessage) -> None:
    """Whatever another server or client has put into it: what no template reads is left out; a thought is kept."""
    hello = {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}}
    assert read(hello, {"role": "assistant", **message})[1] == turn
    assert read(hello, {"role": "function", "name": "f", "content": "sunny"})[1] == ChatMessage(
        "tool", "sunny", name="f"
    )


def test_an_answer_that_is_gone_on_with() -> None:
    """By vLLM's field, or a member of the last message; it must be an assistant's, and text."""
    begun: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
    expected = ChatPrompt((ChatMessage("user", "Hi"),), prefill="He")
    for more in ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}):
        assert chat({"messages": begun, **more}).prompts == (expected,)
    assert chat({"messages": [begun[0], {**begun[1], "prefix": True}]}).prompts == (expected,)
    for messages, param in (
        (begun[:1], "continue_final_message"),
        ([begun[0], {"role": "assistant", "tool_calls": [CALL]}], "continue_final_message"),
        ([begun[0], {"role": "assistant", "token_ids": [5]}], "messages[1].token_ids"),
    ):
        with pytest.raises(ApiError) as raised:
            chat({"messages": messages, "continue_final_message": True})
        assert raised.value.param == param
    with pytest.raises(ApiError, match="contradict each other"):
        chat({"messages": begun, "continue_final_message": True, "add_generation_prompt": True})


def test_variables_of_the_template() -> None:
    """Fields that are variables there; `chat_template_kwargs` has the last word."""
    found = chat(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "documents": [{"text": "a"}],
            "reasoning_effort": "low",
            "add_generation_prompt": False,
            "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high"},
        }
    )
    [prompt] = found.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.chat_template_kwargs == {
        "documents": [{"text": "a"}],
        "reasoning_effort": "high",
        "add_generation_prompt": False,
        "enable_thinking": False,
    }


def test_ids_in_place_of_messages() -> None:
    """The prompt as it is; messages beside it, or none, are refused by name."""
    assert chat({"prompt_token_ids": [1, 2]}).prompts == ((1, 2),)
    for body, param in (
        ({"prompt_token_ids": [1], "messages": [{"role": "user", "content": "Hi"}]}, "messages"),
        ({"prompt_token_ids": [1], "documents": []}, "documents"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids[0]"),
    ):
        with pytest.raises(ApiError) as raised:
            chat(body)
        assert raised.value.param == param
