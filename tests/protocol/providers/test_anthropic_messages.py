"""Anthropic's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage, ToolCall
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.protocol.providers.anthropic_messages import read, write_chat
from lmtool.protocol.providers.chat_request import ChatRequest

if TYPE_CHECKING:
    from lmtool.protocol.providers.chat_request import ToolChoice

USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}},
            },
            [TokenUsage(7, 1, 2)],
        ),
        ({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, []),
        ({"type": "content_block_start", "index": 1, "content_block": USE}, [ToolCallDelta(0, 1, "t1", "f")]),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            [TextDelta(0, "Hi")],
        ),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
            [TextDelta(0, "so", (), "reasoning")],
        ),
        (
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
            [ToolCallDelta(0, 1, arguments='{"a')],
        ),
        ({"type": "content_block_stop", "index": 0}, []),
        (
            {
                "type": "message_delta",
                "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
                "usage": {"output_tokens": 9},
            },
            [TokenUsage(None, 9, None), ChoiceFinished(0, "stop", "END")],
        ),
        ({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, [ChoiceFinished(0, "length")]),
        ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, [ChoiceFinished(0, "tool_calls")]),
        ({"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}, [ChoiceFinished(0, "pause_turn")]),
        ({"type": "message_stop"}, []),
        ({"type": "ping"}, []),
        ({"type": "content_block_delta", "delta": 5}, []),
    ],
)
def test_streamed_events(event: dict[str, object], expected: list[object]) -> None:
    """Blocks begin and go on; stop reasons are told in OpenAI's words where there is one."""
    assert list(read(event)) == expected


def test_a_whole_message() -> None:
    """Blocks in order, a call's arguments as JSON text."""
    content = [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Hi"}, {**USE, "input": {"a": "é"}}]
    message = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 5}}
    assert list(read(message)) == [
        TextDelta(0, "so", (), "reasoning"),
        TextDelta(0, "Hi"),
        ToolCallDelta(0, 2, "t1", "f", '{"a": "é"}'),
        TokenUsage(5, None, None),
        ChoiceFinished(0, "stop"),
    ]


class TestRequests:
    """What is written where OpenAI's form and this one differ."""

    def test_turns_alternate(self) -> None:
        """Turns of one role are joined, answers of tools are the user's, empty texts are left out."""
        messages = (
            ChatMessage("user", "a"),
            ChatMessage("user", ""),
            ChatMessage("user", "b"),
            ChatMessage("assistant", "", (ToolCall("1", "f", "{}"), ToolCall("2", "g", "no JSON"))),
            ChatMessage("tool", "x", tool_call_id="1"),
            ChatMessage("tool", "y", tool_call_id="2"),
            ChatMessage("user", "c"),
            ChatMessage("assistant", ""),
        )
        assert write_chat(ChatRequest(messages), "m", {})["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                    {"type": "tool_use", "id": "2", "name": "g", "input": {"INVALID_JSON": "no JSON"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "x"},
                    {"type": "tool_result", "tool_use_id": "2", "content": "y"},
                    {"type": "text", "text": "c"},
                ],
            },
        ]

    @pytest.mark.parametrize(
        ("roles", "parameters", "expected"),
        [
            ("system user developer", {}, {"system": "system\n\ndeveloper", "messages": [("user", "user")]}),
            ("system user", {"system": "own"}, {"system": "own\n\nsystem", "messages": [("user", "user")]}),
            ("user", {"system": "own"}, {"system": "own", "messages": [("user", "user")]}),
            ("system", {}, {"messages": [("user", "system")]}),
        ],
    )
    def test_system_turns_stand_apart(
        self, roles: str, parameters: dict[str, object], expected: dict[str, Any]
    ) -> None:
        """All of them, behind what a configuration has; a conversation of nothing else is a user's turn."""
        chat = ChatRequest(tuple(ChatMessage(role, role) for role in roles.split()))
        turns = [{"role": role, "content": text} for role, text in expected["messages"]]
        body = write_chat(chat, "m", parameters)
        assert body == {"model": "m", "max_tokens": 4096, **expected, "messages": turns}

    def test_json_without_a_schema(self) -> None:
        """It is refused: the API has none. Plain text is what it writes anyway."""
        turns = (ChatMessage("user", "a"),)
        with pytest.raises(RequestError, match="json_object"):
            write_chat(ChatRequest(turns, response_format={"type": "json_object"}), "m", {})
        assert "output_config" not in write_chat(ChatRequest(turns, response_format={"type": "text"}), "m", {})

    def test_a_users_id(self) -> None:
        """Glide's configurations have it alone; the API wants it named."""
        body = write_chat(ChatRequest((ChatMessage("user", "a"),)), "m", {"metadata": "u-1"})
        assert body["metadata"] == {"user_id": "u-1"}

    @pytest.mark.parametrize(
        ("choice", "parallel", "expected"),
        [
            (None, None, None),
            (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
            ("auto", True, {"type": "auto"}),
            ("none", False, {"type": "none"}),
            ("required", None, {"type": "any"}),
            ("named", None, {"type": "tool", "name": "f"}),
        ],
    )
    def test_which_tools_may_be_called(
        self, choice: ToolChoice | None, parallel: bool | None, expected: dict[str, object] | None
    ) -> None:
        """Each of OpenAI's choices has its own word; their number is part of the choice."""
        tool = {"type": "function", "function": {"name": "f"}}
        chat = ChatRequest((ChatMessage("user", "a"),), {}, (tool,), choice, "f", parallel)
        body = write_chat(chat, "m", {})
        assert body.get("tool_choice") == expected
        assert body["tools"] == [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
