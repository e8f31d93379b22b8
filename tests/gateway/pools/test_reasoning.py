"""What members of a pool think: how much they are asked to, what comes of it, and what it counts."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from lmtool.core.reasoning import Reasoning
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from lmtool.gateway.pools.backend import Reply
from lmtool.gateway.pools.config import LocalTarget, MemberConfig
from lmtool.gateway.pools.model_backend import ModelBackend
from lmtool.gateway.pools.pool_answer import PoolAnswer
from lmtool.gateway.pools.pool_request import from_stream
from lmtool.gateway.pools.pool_stream import Outputs
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.providers.answer_events import TextDelta, TokenUsage
from tests.fake_upstream import Behaviour, FakeUpstream
from tests.gateway.pools.running import Gateway, gateway, member, pool
from tests.protocol.http.thinking import READERS, Found, scripted

HELLO = [{"role": "user", "content": "Hello"}]
SWITCHED = {"enable_thinking": True, "thinking": True}


class Answered:
    """An answer without seams."""

    seams = ()


@pytest.mark.parametrize("shown", [True, False])
def test_it_passes_through(shown: bool) -> None:
    """As `reasoning`, apart from the text; a stream that does not ask gets the text alone."""
    outputs = Outputs(1, cast("PoolAnswer", Answered()), shows_reasoning=shown)
    found = outputs.of([TextDelta(0, "Hm", (), "reasoning"), TextDelta(0, "Yes", ())])
    assert [(one.reasoning, one.text) for one in found] == ([("Hm", "")] if shown else []) + [(None, "Yes")]


def thoughtful() -> Behaviour:
    """An answer of a server that follows OpenAI's API, with a thought of four tokens."""
    details = {"reasoning_tokens": 4}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]},
        {"choices": [{"index": 0, "delta": {"content": "Yes"}, "finish_reason": "stop"}]},
        {
            "choices": [],
            "usage": {"prompt_tokens": 7, "completion_tokens": 9, "completion_tokens_details": details},
        },
    ]
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Behaviour(body=f"{lines}data: [DONE]\n\n".encode(), content_type="text/event-stream")


async def over_http(served: Gateway, path: str, **asked: Any) -> tuple[Found, int | None]:
    """What a streamed answer comes to, and the tokens of its thought as far as the API counts them."""
    said = {"input": "Hello"} if path == "responses" else {"messages": HELLO}
    more = {"chat/completions": {"stream_options": {"include_usage": True}}, "messages": {"max_tokens": 2000}}
    body = {"model": "default", **said, **more.get(path, {}), **asked, "stream": True}
    status, _, text = await served.post(f"/v1/{path}", body)
    assert status == 200, text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == "chat/completions":
        counts = events[-1]["usage"]["completion_tokens_details"]
        return READERS[path](events[:-1]), counts["reasoning_tokens"]
    if path == "responses":
        return READERS[path](events), events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"]
    return READERS[path](events), None


async def test_how_much_to_think_on_every_wire() -> None:
    """Effort, budget and switch reach the member; its thought comes back apart, and is counted, from the cache too."""
    async with FakeUpstream() as upstream:
        upstream.usual = thoughtful()
        cached = pool(member("a", upstream), cache="{kind: memory, sampled: true}")
        async with gateway(cached) as served:
            enabled = {"type": "enabled", "budget_tokens": 1500}
            asks: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
                (
                    "chat/completions",
                    {"reasoning_effort": "low", "thinking_token_budget": 9},
                    {"thinking_token_budget": 9},
                ),
                (
                    "responses",
                    {"reasoning": {"effort": "low"}, "thinking_token_budget": 10},
                    {"thinking_token_budget": 10},
                ),
                (
                    "messages",
                    {"thinking": enabled, "output_config": {"effort": "low"}},
                    {"thinking_token_budget": 1500, "chat_template_kwargs": SWITCHED},
                ),
            ]
            for path, asked, told in asks:
                for _ in range(2):  # the second one is from the cache
                    found, counted = await over_http(served, path, **asked)
                    assert found == Found("Hm", "Yes", None, "stop")
                    assert counted in {4, None}
                sent = upstream.received[-1].json
                assert {name: sent.get(name) for name in told} == told
                assert sent["reasoning_effort"] == "low"
            prompt = ChatPrompt((ChatMessage("user", "Hello"),), chat_template_kwargs={"reasoning_effort": "high"})
            request = GenerateRequest(
                1, prompt, SamplingParams(temperature=1), "default", text=True, reasoning=Reasoning(8)
            )
            async with LmtpClient(served.url.replace("http", "ws")) as client:
                outputs = [output async for output in stream(client, request)]
            assert "".join(output.reasoning or "" for output in outputs) == "Hm"
            assert outputs[-1].usage is not None
            assert outputs[-1].usage.reasoning_tokens == 4
            body = upstream.received[-1].json
            assert (body["reasoning_effort"], body["thinking_token_budget"]) == ("high", 8)
            assert len(upstream.received) == len(asks) + 1


async def test_a_model_of_our_own() -> None:
    """It takes the budget, variables of its template, and the thoughts of earlier turns, and counts what it thinks."""
    turns = (
        *(ChatMessage("user", "Hello"), ChatMessage("assistant", "No.", reasoning="Hm.")),
        ChatMessage("user", "And?"),
    )
    prompt = ChatPrompt(turns, chat_template_kwargs={"enable_thinking": True})
    request = GenerateRequest(1, prompt, SamplingParams(temperature=0, max_tokens=60), reasoning=Reasoning(4))
    with scripted() as server:
        backend = ModelBackend(MemberConfig("own", LocalTarget(), None), server.model)
        server.says("So, so, so, so, so.\n</think>\n\nYes.")
        events = [one async for some in backend.answer(from_stream(request), Reply()) for one in some]
        thought = "".join(one.text for one in events if isinstance(one, TextDelta) and one.kind == "reasoning")
        assert 0 < len(thought) < len("So, so, so, so, so.")
        [usage] = [one for one in events if isinstance(one, TokenUsage)]
        assert usage.reasoning_tokens is not None
        assert usage.reasoning_tokens >= 4
        sent = server.tokenizer.decode(server.requests[-1].prompt)  # type: ignore[arg-type]
        assert sent == "user\nHello\nassistant\n<think>\nHm.\n</think>\n\nNo.\nuser\nAnd?\nassistant\n<think>\n"


@pytest.mark.parametrize(
    ("reasoning", "variables", "asked"),
    [
        (None, {}, None),
        (Reasoning(), {"documents": None}, None),
        (Reasoning(0), {}, (False, None, None)),
        (Reasoning(7), {"thinking": True}, (True, 7, None)),
        (Reasoning(), {"enable_thinking": False, "reasoning_effort": "none"}, (False, None, "none")),
        (Reasoning(), {"reasoning_effort": 5}, None),
    ],
)
def test_what_a_stream_asks_of_a_pool(
    reasoning: Reasoning | None, variables: dict[str, object], asked: tuple[bool, int | None, str | None] | None
) -> None:
    """Whatever the wire: by its budget and the variables of chat templates."""
    prompt = ChatPrompt((ChatMessage("user", "Hello"),), chat_template_kwargs=variables)
    thinking = from_stream(GenerateRequest(1, prompt, SamplingParams(), reasoning=reasoning)).chat.thinking
    assert (None if thinking is None else (thinking.enabled, thinking.budget, thinking.effort)) == asked
