"""Messages of chat completions."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.http_api.errors import ApiError
from lmtool.http_api.openai.requests import chat
from lmtool.types import ChatMessage, ChatPrompt, ToolCall

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
        ({"role": "user", "content": "Hi", "contents": "Hi"}, "messages[0].contents"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}, "messages[0].tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
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
