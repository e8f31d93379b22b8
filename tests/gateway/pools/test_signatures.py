"""Signatures of thoughts: Anthropic's API refuses a second turn with tools that has not the very thought it signed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from lmtool.gateway.pools.cache import StoredAnswer
from lmtool.protocol.http.anthropic.requests import own_signature
from lmtool.protocol.providers.answer_events import ChatAnswer
from lmtool.protocol.providers.anthropic_messages import read
from tests.fake_upstream import Behaviour, FakeUpstream
from tests.gateway.pools.running import Gateway, gateway, member, pool

THOUGHTS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm, a city.", "signature": "c2lnbmVk=="},
    {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
    {"type": "thinking", "thinking": "", "signature": "b21pdHRlZA=="},
]
"""Read, redacted, and signed without its text, as newer models do unless they are asked for it."""
SAID: list[dict[str, Any]] = [
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
]
WHOLE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [*THOUGHTS, *SAID],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 9},
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
QUESTION = {"role": "user", "content": "How is the weather in Oslo?"}
THINKING: Any = {"type": "enabled", "budget_tokens": 1500}


def deltas_of(block: dict[str, Any]) -> list[dict[str, Any]]:
    """The deltas in which a block is streamed, behind its beginning."""
    if block["type"] == "thinking":
        pieces = [block["thinking"][:3], block["thinking"][3:]] if block["thinking"] else []
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        return [*thought, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "tool_use":
        return [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return [{"type": "text_delta", "text": block["text"]}] if block["type"] == "text" else []


def events() -> list[dict[str, Any]]:
    """`WHOLE` as it is streamed."""
    begun = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}, "tool_use": {"input": {}}}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": {**WHOLE, "content": [], "stop_reason": None}}]
    for index, block in enumerate(WHOLE["content"]):
        start = {**block, **begun.get(block["type"], {})}
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas_of(block)]
        found.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    return [*found, {"type": "message_delta", "delta": ending, "usage": WHOLE["usage"]}, {"type": "message_stop"}]


def signed(*, stream: bool) -> Behaviour:
    """What the provider answers."""
    if not stream:
        return Behaviour(body=json.dumps(WHOLE).encode(), content_type="application/json")
    text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events())
    return Behaviour(body=text.encode(), content_type="text/event-stream")


@asynccontextmanager
async def serving(upstream: FakeUpstream, **more: Any) -> AsyncIterator[Gateway]:
    """A gateway to a member of Anthropic's API."""
    async with upstream, gateway(pool(member("a", upstream, "anthropic"), **more)) as served:
        yield served


def sent_back(upstream: FakeUpstream) -> tuple[list[dict[str, Any]], object]:
    """The assistant's turn of the last request, and how much to think it says."""
    body = upstream.received[-1].json
    [turn] = [one["content"] for one in body["messages"] if one["role"] == "assistant"]
    return turn, body.get("thinking")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_messages(stream: bool, again: bool) -> None:
    """Anthropic's own SDK sends back what it got, and the provider gets what it had sent; from the cache, too."""
    upstream = FakeUpstream(signed(stream=stream))
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    common: dict[str, Any] = {"model": "default", "max_tokens": 4000, "thinking": THINKING, "tools": tools}
    async with (
        serving(upstream, cache="{kind: memory, sampled: true}") as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0) as client,
    ):
        turns: list[Any] = [QUESTION]
        for _ in range(1 + again):
            if stream:
                async with client.messages.stream(messages=turns, **common) as answering:
                    first = await answering.get_final_message()
            else:
                first = await client.messages.create(messages=turns, **common)
        assert len(upstream.received) == 1
        assert [block.to_dict() for block in first.content] == WHOLE["content"]
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"}
        turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        await client.messages.create(messages=turns, **common, stream=stream)
    assert sent_back(upstream) == (WHOLE["content"], THINKING)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_responses(stream: bool, stored: bool) -> None:
    """A signature is the item's `encrypted_content`; items go back, or the server goes on from its own."""
    upstream = FakeUpstream(signed(stream=stream))
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    body = {"model": "default", "tools": [tool], "chat_template_kwargs": {"enable_thinking": True}, "stream": stream}
    async with serving(upstream) as served:
        status, _, found = await served.post("/v1/responses", {**body, "input": [QUESTION]})
        assert status == 200, found
        if stream:
            found = json.loads(found.splitlines()[-2].removeprefix("data: "))["response"]
        thoughts = [item["encrypted_content"] for item in found["output"] if item["type"] == "reasoning"]
        assert thoughts == ["thinking:c2lnbmVk==", "redacted_thinking:ZW5jcnlwdGVk", "thinking:b21pdHRlZA=="]
        result = {"type": "function_call_output", "call_id": "toolu_1", "output": "Rain"}
        more: dict[str, Any] = {"input": [QUESTION, *found["output"], result]}
        if stored:
            more = {"input": [result], "previous_response_id": found["id"]}
        status, _, text = await served.post("/v1/responses", body | more)
        assert status == 200, text
    assert sent_back(upstream) == (WHOLE["content"], {"type": "adaptive"})


async def test_thoughts_that_nobody_signed() -> None:
    """What our own models thought, and what came over chat completions, is not sent to Anthropic's API as a thought."""
    upstream = FakeUpstream(signed(stream=False))
    own = {"type": "thinking", "thinking": "Hm.", "signature": own_signature("Hm.")}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"}
    turns = [QUESTION, {"role": "assistant", "content": [own, *SAID]}, {"role": "user", "content": [result]}]
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    chat = [
        QUESTION,
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Rain"},
    ]
    async with serving(upstream) as served:
        common = {"model": "default", "max_tokens": 4000, "thinking": THINKING}
        for path, messages in (("messages", turns), ("chat/completions", chat)):
            status, _, found = await served.post(f"/v1/{path}", {**common, "messages": messages})
            assert status == 200, found
            assert sent_back(upstream) == (SAID, None)


def test_a_stored_answer() -> None:
    """Signed parts, and what was thought behind them, come from a cache as they came from the provider."""
    answer = ChatAnswer()
    behind = {"type": "thinking", "thinking": "And?"}
    answer.add(read({**WHOLE, "content": [*THOUGHTS, behind, *SAID]}))
    again = ChatAnswer()
    again.add(StoredAnswer.of("a", answer, {}, None).events())
    assert again.choices[0].signed_thoughts == answer.choices[0].signed_thoughts
    assert len(answer.choices[0].signed_thoughts) == 3
    assert "".join(again.choices[0].reasoning) == "Hm, a city.And?"
