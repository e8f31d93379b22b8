"""Requests to `/v1/messages`."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import SignedMessage
from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http.anthropic.requests import read
from lmtool.protocol.http.errors import ApiError

SIGNATURE = ThoughtSignature("s")
HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}


def asked(**more: Any) -> Any:
    return read({"max_tokens": 5, "messages": HELLO, **more})


def test_the_conversation() -> None:
    """The system first; calls and results are turns; a thought stands with its turn."""
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
        SignedMessage.of(
            ChatMessage("assistant", "See.", (ToolCall("1", "f", '{"a": 1}'),), reasoning="..."),
            [SignedThought("...", SIGNATURE)],
        ),
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
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content"),
        ({"temperature": 2}, "temperature"),
        ({"thinking": {"type": "odd"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}, "thinking_token_budget": 6}, "thinking_token_budget"),
        ({"tools": [{"type": 1, "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"stops": ["x"]}, "stops"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}, "max_tokens": 0},
            "max_tokens",
        ),
        ({"prompt_token_ids": [1]}, "messages"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "x", "token_ids": [5]}]}, "messages[1].token_ids"),
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


def test_what_changes_nothing_is_taken() -> None:
    """What clients send by habit, and notes of theirs anywhere within messages and tools."""
    noted = {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "note": "mine"}
    call = asked(
        cache_control={"type": "ephemeral"},
        container=None,
        inference_geo="us",
        speed="standard",
        service_tier="auto",
        mcp_servers=[],
        thinking={"type": "adaptive"},
        output_config={"effort": "low"},
        tools=[{**TOOL, **noted, "input_examples": [], "eager_input_streaming": True, "defer_loading": False}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi", **noted}], **noted},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "s"}]},
            *HELLO,
        ],
    )
    assert call.prompts[0].messages == (
        ChatMessage("user", "Hi"),
        SignedMessage.of(ChatMessage("assistant", "", reasoning="so"), [SignedThought("so", SIGNATURE)]),
        ChatMessage("user", "Hi"),
    )


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_form(name: str) -> None:
    """A schema, as `messages.parse` sends it; both spellings together contradict each other."""
    form = {"type": "json_schema", "schema": {"type": "object"}, "name": "ours"}
    spelled = {"output_config": {"format": form}, "output_format": form}
    found = asked(**{name: spelled[name]}).constraint
    assert (found.kind, found.text, found.strict) == ("json_schema", '{"type":"object"}', True)
    with pytest.raises(ApiError, match="contradict each other"):
        asked(**spelled)


def test_exact_ids() -> None:
    """Those of a turn in place of its blocks, or of the whole prompt."""
    answer = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}
    turns = asked(messages=[*HELLO, {**answer, "token_ids": [5, 6]}, *HELLO]).prompts[0].messages
    assert turns[1] == ChatMessage("assistant", "", tokens=(5, 6))
    assert read({"max_tokens": 5, "prompt_token_ids": [1, 2]}).prompts == ((1, 2),)
