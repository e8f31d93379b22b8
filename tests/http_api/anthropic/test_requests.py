"""Requests to `/v1/messages`."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.http_api.anthropic.requests import read
from lmtool.http_api.errors import ApiError
from lmtool.types import ChatMessage, ChatPrompt, ToolCall

HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}


def asked(**more: Any) -> Any:
    return read({"max_tokens": 5, "messages": HELLO, **more})


def test_the_conversation() -> None:
    """The system first; calls and results are turns; thoughts of others are left out."""
    call = asked(
        system=[{"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            *HELLO,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "...", "signature": "s"},
                    {"type": "text", "text": "See."},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}]},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
    )
    assert call.prompts[0].messages == (
        ChatMessage("system", "brief"),
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "See.", (ToolCall("1", "f", '{"a": 1}'),)),
        ChatMessage("tool", "sunny", tool_call_id="1"),
        ChatMessage("user", "So?"),
    )


def test_an_answer_that_has_begun() -> None:
    """A last turn of the assistant is gone on from."""
    call = asked(messages=[*HELLO, {"role": "assistant", "content": "The"}])
    assert call.prompts == (ChatPrompt((ChatMessage("user", "Hi"),), prefill="The"),)


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        (None, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "f"}, "named", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ],
)
def test_tools(choice: object, mode: str, parallel: bool) -> None:
    """Anthropic's words for the choice."""
    use = asked(tools=[TOOL], tool_choice=choice).tools
    assert (use.mode, use.parallel, use.tools[0].parameters) == (mode, parallel, {"type": "object"})
    assert asked(tools=[TOOL], tool_choice={"type": "none"}).tools is None


def test_parameters() -> None:
    """Stop sequences and sampling, with Anthropic's defaults."""
    sampling = asked(stop_sequences=["x"], temperature=0.5, top_k=3, metadata={"user_id": "me"}).sampling
    assert (sampling.stop, sampling.temperature, sampling.top_k, sampling.max_tokens) == (("x",), 0.5, 3, 5)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content"),
        ({"temperature": 2}, "temperature"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"stops": ["x"]}, "stops"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], param: str) -> None:
    """400, and the member to blame."""
    with pytest.raises(ApiError) as raised:
        asked(**more)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_to_count_needs_no_limit() -> None:
    """`count_tokens` generates nothing."""
    assert read({"messages": HELLO}, counting=True).prompts[0] == ChatPrompt((ChatMessage("user", "Hi"),))
