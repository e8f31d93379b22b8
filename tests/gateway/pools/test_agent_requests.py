"""What coding agents send, through a gateway: to each API behind it, and its overflow on the way back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fake_upstream import Behaviour, FakeUpstream
from tests.gateway.pools.running import Gateway, gateway, member, pool
from tests.protocol.http.agents import RECORDED, events_of, text_of, warnings_of

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
KINDS = ("openai", "anthropic", "ollama", "cohere")


async def asked(served: Gateway, path: str, body: Mapping[str, Any], *, stream: bool) -> Any:
    """The answer of the pool, or the events of a streamed one."""
    status, _, reply = await served.post(path, {**body, "model": "default", "stream": stream})
    assert status == 200, reply
    return events_of(reply) if stream else reply


def calls_of(body: Any) -> list[object]:
    """The arguments of each call in what a provider got, whichever API it has."""
    found: list[object] = []
    for message in body["messages"]:
        calls = message.get("tool_calls") or []
        found += [call["function"]["arguments"] for call in calls]
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        found += [block["input"] for block in blocks if block["type"] == "tool_use"]
    return [json.loads(one) if isinstance(one, str) else one for one in found]


@STREAMED
@pytest.mark.parametrize("kind", KINDS)
async def test_recorded_requests(kind: str, *, stream: bool) -> None:
    """Each is answered by each provider's API, whose calls have objects for arguments; a cut one too."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream, kind))) as served:
        for path, body in RECORDED:
            answer = await asked(served, path, body, stream=stream)
            assert text_of(path, answer) == "Hello"
            assert [one[:15] for one in warnings_of(path, answer)] == ["tools left out:"] * path.endswith("responses")
            arguments = calls_of(upstream.received[-1].json)
            assert all(isinstance(one, dict) for one in arguments)
        assert arguments[-1] == {"INVALID_JSON": '{"cmd": "echo on'}


@STREAMED
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/default/chat"])
async def test_overflow(path: str, *, stream: bool) -> None:
    """In the words that clients know, with the numbers of the longest context; a fallback that fits answers."""
    long = Behaviour(status=400, message="prompt is too long: 215000 tokens > 200000 maximum")
    short = Behaviour(status=400, code="context_length_exceeded", message="maximum context length is 8192 tokens")
    turns: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "model": "default"}
    other: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": "default", "input": "Hi"},
        "/v1/default/chat": {"message": {"role": "user", "content": "Hi"}},
    }
    body = other.get(path, turns) | {"stream": stream}
    async with (
        FakeUpstream(short) as one,
        FakeUpstream(long) as two,
        FakeUpstream(short) as three,
        gateway(pool(member("a", one), member("b", two, "anthropic"), member("c", three))) as served,
    ):
        status, _, reply = await served.post(path, body)
        error = reply.get("error", reply)
        assert status == 400
        told = re.findall(r"^prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+) maximum", error["message"])
        assert told == [("215000", "200000")]
        assert "this model's maximum context length is 200000 tokens" in error["message"]
        if path in {"/v1/chat/completions", "/v1/responses"}:
            assert error["code"] == "context_length_exceeded"
        two.usual = one.usual = Behaviour(status=413, message="Your input exceeds the context window of this model")
        three.usual = two.usual
        status, _, reply = await served.post(path, body)
        message = reply.get("error", reply)["message"]
        assert (status, message.startswith("prompt is too long")) == (400, True)
        assert "this model's maximum context length is less" in message
        three.usual = Behaviour()
        status, _, reply = await served.post(path, body)
        assert status == 200
