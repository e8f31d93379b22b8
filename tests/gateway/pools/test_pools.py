"""Pools as models of every other route, configurations that change, and the cache."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from lmtool.core.errors import UnknownModelError
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, ScoreRequest
from lmtool.gateway.pools.config_reader import parse
from lmtool.gateway.pools.pools import OwnModels, Pools
from lmtool.protocol.lmtp.client import LmtpClient
from tests.fake_answers import CALL, Words
from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, MESSAGE, Gateway, gateway, member, pool
from tests.scripted_model import ScriptedModel

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def client(served: Gateway) -> openai.AsyncOpenAI:
    """The official client."""
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_the_official_client_gets_tool_calls(kind: str) -> None:
    """Whole and streamed, with the provider's id; the tools reach the member as they are."""
    words = Words(("Let me see",), (CALL,), "tool_calls")
    async with (
        FakeUpstream(Behaviour(words=words)) as upstream,
        gateway(pool(member("main", upstream, kind))) as served,
        client(served) as asking,
    ):
        options: Any = {**CHAT, "tools": [TOOL], "tool_choice": "required"}
        whole = await asking.chat.completions.create(**options)
        message = whole.choices[0].message
        assert message.tool_calls is not None
        [call] = message.tool_calls
        assert (call.id, call.function.name, json.loads(call.function.arguments)) == (  # type: ignore[union-attr]
            CALL.id,
            "weather",
            {"city": "Oslo"},
        )
        assert (whole.choices[0].finish_reason, message.content) == ("tool_calls", "Let me see")
        arguments, names = "", []
        async for chunk in await asking.chat.completions.create(**options, stream=True):
            for part in chunk.choices[0].delta.tool_calls or []:
                assert part.index == 0
                arguments += part.function.arguments or ""  # type: ignore[union-attr]
                names += [part.function.name] if part.function.name else []  # type: ignore[union-attr]
        assert (names, json.loads(arguments)) == (["weather"], {"city": "Oslo"})
    sent = upstream.received[0].json
    assert len(sent["tools"]) == 1
    assert sent["tool_choice"] == ("required" if kind == "openai" else {"type": "any"})


async def test_parameters_and_forms_reach_the_member() -> None:
    """What the client sets, and nothing that it does not; a schema is forwarded, not compiled."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        await served.post("/v1/chat/completions", CHAT | {"temperature": 0.2, "max_tokens": 9, "response_format": form})
        await served.post("/v1/chat/completions", CHAT)
    body, plain = (one.json for one in upstream.received)
    assert (body["temperature"], body["max_tokens"]) == (0.2, 9)
    assert body["response_format"]["json_schema"]["schema"]["properties"] == schema["properties"]
    assert sorted(plain) == ["messages", "model"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"structured_outputs": {"regex": "a+"}}, "main has no constraints of kind regex"),
        ({"stop_token_ids": [3]}, "a pool has no token ids, so it cannot have stop_token_ids"),
        ({"prompt_logprobs": 1}, "no tokenizer"),
        ({"logits_processors": [{"name": "x"}]}, "a pool has no logits"),
    ],
)
async def test_what_needs_ids_or_masks_is_refused_by_name(more: dict[str, Any], expected: str) -> None:
    """Before any call."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        status, _, reply = await served.post("/v1/chat/completions", CHAT | more)
        assert status == 400
        assert expected in reply["error"]["message"]
        status, _, reply = await served.post("/v1/completions", {"model": "default", "prompt": "Once"})
        assert (status, "takes messages" in reply["error"]["message"]) == (400, True)
    assert upstream.received == []


async def test_a_member_that_can_is_found() -> None:
    """What a provider lacks passes over its members only."""
    async with (
        FakeUpstream() as one,
        FakeUpstream() as two,
        gateway(pool(member("a", one, "anthropic"), member("b", two))) as served,
    ):
        status, headers, _ = await served.post("/v1/chat/completions", CHAT | {"seed": 4})
        assert (status, headers["x-lmtool-attempts"].split()[0]) == (200, "b")
    assert one.received == []


async def test_pools_are_listed_and_speak_every_protocol() -> None:
    """`/v1/models`, `/v1/messages`, `/v1/responses`, and LMTP in text mode."""
    async with FakeUpstream() as upstream, gateway(pool(member("main", upstream))) as served:
        assert [one["id"] for one in (await served.get("/v1/models"))["data"]] == ["default"]
        turns = [{"role": "user", "content": "Hi"}]
        _, _, message = await served.post("/v1/messages", {"model": "default", "max_tokens": 5, "messages": turns})
        assert message["content"] == [{"type": "text", "text": "Hello"}]
        _, _, response = await served.post("/v1/responses", {"model": "default", "input": "Hi"})
        assert response["output"][0]["content"][0]["text"] == "Hello"
        async with LmtpClient(served.url) as lmtp:
            info = await lmtp.info("default")
            assert (info.text_only, info.chat_template) == (True, True)
            prompt = ChatPrompt((ChatMessage("user", "Hi"),))
            outputs = [one async for one in stream(lmtp, GenerateRequest(1, prompt, text=True, model="default"))]
            assert "".join(one.text or "" for one in outputs) == "Hello"
            assert {one.token for one in outputs} == {None}
            assert outputs[-1].finish_reason == "stop"
            assert outputs[-1].usage is not None
            [refused] = [one async for one in stream(lmtp, GenerateRequest(2, (1, 2), model="default"))]
            assert "a pool takes messages, not token ids" in (refused.error or "")
            [refused] = [one async for one in stream(lmtp, ScoreRequest(3, "a", "b", model="default"))]
            assert "cannot SCORE" in (refused.error or "")
            going_on = GenerateRequest(4, prompt, model="default", generated=(5,))
            [refused] = [one async for one in stream(lmtp, going_on)]
            assert "it cannot have generated" in (refused.error or "")
            resumable = GenerateRequest(5, prompt, text=True, model="default", resumable=True)
            assert {one.seed for one in [one async for one in stream(lmtp, resumable)]} == {None}


@pytest.mark.parametrize(
    ("names", "taken"), [(["one"], "one"), (["one", "default"], "default"), (["one", "two"], None)]
)
async def test_a_request_without_a_name(names: list[str], taken: str | None) -> None:
    """Gets the only pool, or the one named default; where there is neither, an error lists them."""
    text = "pools:\n" + "".join(
        f"  - id: {name}\n    models: [{{id: a, lmtp: {{endpoint: ':1'}}}}]\n" for name in names
    )
    pools = Pools(parse(text))
    if taken is None:
        with pytest.raises(UnknownModelError, match="names no pool"):
            await pools.info()
    else:
        assert (await pools.info()).model == taken
    await pools.close()


async def test_pools_beside_models() -> None:
    """A pool's name goes before; every other is a model, which `local` members are as well."""
    model = ScriptedModel()

    class Progress:
        def subscribe(self, *_: object) -> Any:
            return lambda: None

    text = "pools:\n  - id: mine\n    models: [{id: here, local: {model: scripted}}]\n"
    pools = Pools(parse(text), OwnModels(model, model, Progress()))
    assert [one.name for one in pools.models()] == ["mine", "scripted"]
    assert (await pools.info("mine")).text_only
    assert (await pools.info("scripted")).vocab_size == 1000
    assert pools.entry(None).name == "scripted"
    outputs = [one async for one in stream(pools, GenerateRequest(1, (5, 6), model="scripted"))]
    assert outputs[0].token is not None
    prompt = ChatPrompt((ChatMessage("user", "ab"),))
    outputs = [one async for one in stream(pools, GenerateRequest(1, prompt, text=True, model="mine"))]
    assert len("".join(one.text or "" for one in outputs)) == 32
    assert outputs[-1].finish_reason == "length"
    await pools.close()


async def test_a_stream_that_is_paused_reads_nothing_more() -> None:
    """And one that is cancelled ends the call of the provider."""
    endless = Behaviour(fault="hang", after=2)
    async with FakeUpstream(endless) as upstream:
        pools = Pools(parse(pool(member("main", upstream))))
        arrived: list[Any] = []
        prompt = ChatPrompt((ChatMessage("user", "ab"),))
        handle = pools.submit(GenerateRequest(1, prompt, text=True, model="default"), arrived.extend)
        handle.pause()
        async with asyncio.timeout(10):
            while not upstream.received:
                await asyncio.sleep(0.01)
            assert arrived == []
            handle.resume()
            while not arrived:
                await asyncio.sleep(0.01)
            handle.cancel()
            await upstream.left.wait()
            while arrived[-1].finish_reason != "cancelled":
                await asyncio.sleep(0.01)
        await pools.close()


class TestConfigure:
    """A configuration that changes while requests run."""

    async def test_members_that_stay_keep_their_health(self) -> None:
        """Others are new; streams go on."""
        async with FakeUpstream(BAD["429 in seconds"]) as one, FakeUpstream() as two:
            first, second = member("a", one), member("b", two)
            async with gateway(pool(first, second)) as served:
                await served.post("/v1/default/chat")
                pools = served.service._pools
                assert pools is not None
                pools.configure(parse(pool(first, second, member("c", two), strategy="round_robin")))
                health = [one.health.rest_seconds(served.pool.clock()) > 0 for one in served.pool.members]
                assert health == [True, False, False]
                pools.configure(parse(pool(member("a", two), name="other")))
                assert [one["id"] for one in (await served.get("/v1/models"))["data"]] == ["other"]


class TestCache:
    """Answers to equal requests."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_equal_request_is_not_sent_again(self, stream: bool, tmp_path: Path) -> None:
        """`cached` says so; in memory, and in a file that outlives the gateway."""
        for cache in ("{kind: memory}", f"{{kind: sqlite, path: {tmp_path}/answers.db}}"):
            async with FakeUpstream() as upstream:
                own = ", default_params: {temperature: 0}"
                text = pool(member("main", upstream, own=own), cache=cache, overridable="[temperature, seed]")
                body = MESSAGE | {"stream": stream, "temperature": 0}
                async with gateway(text) as served:
                    first = (await served.post("/v1/default/chat", body))[2]
                    again = (await served.post("/v1/default/chat", body))[2]
                    other = MESSAGE | {"temperature": 0, "messageHistory": [{"role": "user", "content": "x"}]}
                    await served.post("/v1/default/chat", other)
                    assert served.pool.status()["cached"] == 1
                assert len(upstream.received) == 2
                if stream:
                    assert '"cached":false' in first
                    assert '"cached":true' in again
                else:
                    assert (first["cached"], again["cached"]) == (False, True)
                    assert again["provider_response"] == first["provider_response"]
                if "sqlite" in cache:
                    async with gateway(text) as served:
                        assert (await served.post("/v1/default/chat", body))[0] == 200
                    assert len(upstream.received) == 2

    async def test_what_is_not_kept(self) -> None:
        """Sampled answers, failures, and what is too old or too large."""
        async with FakeUpstream() as upstream:
            text = pool(member("main", upstream), cache="{max_age: 0s}", overridable="[temperature]")
            async with gateway(text) as served:
                for _ in range(2):
                    await served.post("/v1/default/chat")  # the provider's own temperature, whatever it is
                    await served.post("/v1/default/chat", MESSAGE | {"temperature": 0})
            assert len(upstream.received) == 4
            upstream.usual = BAD["half a body"]
            async with gateway(pool(member("main", upstream), cache="{sampled: true}")) as served:
                for _ in range(2):
                    await served.post("/v1/default/chat", MESSAGE | {"stream": True})
            assert len(upstream.received) == 6
