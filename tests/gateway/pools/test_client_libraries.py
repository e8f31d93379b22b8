"""The official clients of OpenAI and Anthropic ask pools by their own routes, whatever provider a member is of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from tests.fake_answers import CALL, Words
from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.gateway.pools.running import Gateway, gateway, member, pool

MEMBERS = ["openai", "anthropic", "cohere", "ollama"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@asynccontextmanager
async def anthropic_client(served: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0) as client:
        yield client


@asynccontextmanager
async def openai_client(served: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", MEMBERS)
async def test_anthropic(kind: str) -> None:
    """Text, reason and counts, whole and streamed; system and history reach the provider in its own form."""
    async with (
        FakeUpstream() as upstream,
        gateway(pool(member("main", upstream, kind))) as served,
        anthropic_client(served) as client,
    ):
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
        options = {
            "model": "default",
            "max_tokens": 9,
            "system": "Be brief.",
            "messages": [*turns, {"role": "user", "content": "Go on"}],
        }
        raw = await client.messages.with_raw_response.create(**options)
        message = await raw.parse()
        async with client.messages.stream(**options) as stream:
            texts = [text async for text in stream.text_stream]
            last = await stream.get_final_message()
        assert raw.headers["x-lmtool-attempts"].startswith("main ok")
    assert "".join(texts) == "Hello"
    for one in (message, last):
        assert (one.content[0].text, one.model, one.stop_reason) == ("Hello", "default", "end_turn")
        assert (one.usage.input_tokens, one.usage.output_tokens) == (7, 5)
    for received in upstream.received:
        assert "Be brief." in received.body.decode()
        assert "Go on" in received.body.decode()


@pytest.mark.parametrize("kind", MEMBERS)
async def test_tools_by_anthropic(kind: str) -> None:
    """Calls come back as blocks, whole and streamed."""
    calling = Behaviour(words=Words((), (CALL,), "tool_calls"))
    async with (
        FakeUpstream(calling) as upstream,
        gateway(pool(member("main", upstream, kind))) as served,
        anthropic_client(served) as client,
    ):
        options = {
            "model": "default",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Weather?"}],
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
        }
        message = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            last = await stream.get_final_message()
    for one in (message, last):
        [block] = [block for block in one.content if block.type == "tool_use"]
        assert (block.name, block.input, one.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")


@pytest.mark.parametrize("kind", MEMBERS)
async def test_openai(kind: str) -> None:
    """The same by OpenAI's chat, and the list of pools."""
    async with (
        FakeUpstream() as upstream,
        gateway(pool(member("main", upstream, kind))) as served,
        openai_client(served) as client,
    ):
        chat = {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.chat.completions.create(**chat)
        stream = await client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
        parts = [part async for part in stream]
        assert [one.id async for one in client.models.list()] == ["default"]
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "stop")
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "Hello"
    for usage in (answer.usage, parts[-1].usage):
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (7, 5)


async def test_failures() -> None:
    """Each client raises its own error for a pool that cannot answer, for one that is not there, for a bad request."""
    async with (
        FakeUpstream(BAD["500"]) as upstream,
        gateway(pool(member("main", upstream))) as served,
        anthropic_client(served) as claude,
        openai_client(served) as gpt,
    ):
        turn = [{"role": "user", "content": "Hi"}]
        for stream in (False, True):
            with pytest.raises(anthropic.APIStatusError) as overloaded:
                await claude.messages.create(model="default", max_tokens=9, messages=turn, stream=stream)
            assert (overloaded.value.status_code, overloaded.value.body["error"]["type"]) == (529, "overloaded_error")
            with pytest.raises(openai.InternalServerError, match="no model of the pool default has answered"):
                await gpt.chat.completions.create(model="default", messages=turn, stream=stream)
        with pytest.raises(anthropic.NotFoundError, match="there is no pool 'other'"):
            await claude.messages.create(model="other", max_tokens=9, messages=turn)
        with pytest.raises(openai.NotFoundError, match="there is no pool 'other'"):
            await gpt.chat.completions.create(model="other", messages=turn)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await claude.messages.create(model="default", max_tokens=0, messages=turn)
        upstream.usual = Behaviour(fault="reset", after=3)
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            async with claude.messages.stream(model="default", max_tokens=9, messages=turn) as broken:
                await broken.get_final_message()
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await gpt.chat.completions.create(model="default", messages=turn, stream=True):
                pass
