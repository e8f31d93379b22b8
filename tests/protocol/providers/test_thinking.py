"""How each API is told how much to think."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lmtool.core.types import ChatMessage, ToolCall
from lmtool.protocol.providers.chat_request import ChatRequest, Thinking
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import provider_for

ASKED = (ChatMessage("user", "Hello"),)
CALLED = (
    *ASKED,
    ChatMessage("assistant", "", (ToolCall("1", "f", "{}"),)),
    ChatMessage("tool", "so", tool_call_id="1"),
)
NAMES = frozenset({"reasoning_effort", "thinking", "thinking_token_budget", "chat_template_kwargs", "think"})
ON, OFF = Thinking(True, 2000, "low"), Thinking(False)
HERE, ELSEWHERE = Settings(), Settings("http://127.0.0.1:8000/v1")
SWITCHED = {"enable_thinking": True, "thinking": True}


def body_of(name: str, chat: ChatRequest, settings: Settings = HERE) -> Any:
    """The body of a request."""
    return json.loads(provider_for(name, settings).request(chat, "m", settings).body)


@pytest.mark.parametrize(
    ("name", "settings", "thinking", "told"),
    [
        ("openai", HERE, ON, {"reasoning_effort": "low"}),
        ("openai", HERE, OFF, {"reasoning_effort": "none"}),
        ("openai", HERE, Thinking(None, 500), {}),
        (
            "openai",
            ELSEWHERE,
            ON,
            {"reasoning_effort": "low", "thinking_token_budget": 2000, "chat_template_kwargs": SWITCHED},
        ),
        ("openai", ELSEWHERE, OFF, {"chat_template_kwargs": dict.fromkeys(SWITCHED, False)}),
        ("openai", ELSEWHERE, Thinking(False, None, "none"), {"chat_template_kwargs": dict.fromkeys(SWITCHED, False)}),
        ("openai", ELSEWHERE, Thinking(None, 5, "low"), {"reasoning_effort": "low", "thinking_token_budget": 5}),
        ("azureopenai", Settings("https://x.openai.azure.com"), ON, {"reasoning_effort": "low"}),
        ("anthropic", HERE, ON, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ("anthropic", HERE, Thinking(True), {"thinking": {"type": "adaptive"}}),
        ("anthropic", HERE, OFF, {}),
        ("anthropic", HERE, Thinking(None, 2000, "low"), {}),
        ("cohere", HERE, ON, {"thinking": {"type": "enabled", "token_budget": 2000}}),
        ("cohere", HERE, OFF, {"thinking": {"type": "disabled"}}),
        ("cohere", HERE, Thinking(None, 5, "low"), {}),
        ("cohere", Settings(api_version="v1"), ON, {}),
        ("ollama", HERE, ON, {"think": "low"}),
        ("ollama", HERE, Thinking(True, 5, "minimal"), {"think": True}),
        ("ollama", HERE, OFF, {"think": False}),
        ("ollama", HERE, Thinking(None, 5, "low"), {}),
    ],
)
def test_what_each_api_is_told(name: str, settings: Settings, thinking: Thinking, told: dict[str, Any]) -> None:
    """What it has a word for, and nothing where the request does not say."""
    body = body_of(name, ChatRequest(ASKED, thinking=thinking), settings)
    assert {member: value for member, value in body.items() if member in NAMES} == told
    assert not NAMES & body_of(name, ChatRequest(ASKED), settings).keys()


@pytest.mark.parametrize(
    ("budget", "limit", "told"),
    [(2000, 3000, (2000, 3000)), (5, 3000, (1024, 3000)), (5000, 3000, (2999, 3000)), (2000, None, (2000, 6096))],
)
def test_anthropics_budget_is_below_its_limit(budget: int, limit: int | None, told: tuple[int, int]) -> None:
    """And at least 1024; where the limit is ours, what is thought comes on top."""
    parameters = {} if limit is None else {"maxTokens": limit}
    body = body_of("anthropic", ChatRequest(ASKED, parameters, thinking=Thinking(True, budget, "high")))
    assert (body["thinking"]["budget_tokens"], body["max_tokens"]) == told
    assert body["output_config"] == {"effort": "high"}


@pytest.mark.parametrize(
    "chat",
    [
        ChatRequest(CALLED, thinking=ON),
        ChatRequest(ASKED, thinking=ON, prefill="So"),
        ChatRequest(ASKED, {"maxTokens": 1000}, thinking=ON),
    ],
)
def test_where_anthropics_api_would_refuse_a_thought(chat: ChatRequest) -> None:
    """Behind calls whose thoughts are not at hand, behind a prefill, and below its least budget."""
    assert "thinking" not in body_of("anthropic", chat)


def test_a_members_own_thinking_can_be_turned_off() -> None:
    """What its configuration says holds for requests that do not say."""
    own = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert body_of("anthropic", ChatRequest(ASKED, own))["thinking"] == own["thinking"]
    assert body_of("anthropic", ChatRequest(ASKED, own, thinking=OFF))["thinking"] == {"type": "disabled"}
