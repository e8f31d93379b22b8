"""The official clients as oracles: equivalent bodies for one conversation, equal readings of one answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import anthropic
import cohere
import openai
import pytest

from lmtool.core.outcomes import OK
from lmtool.core.types import ChatMessage, ToolCall
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.protocol.providers.chat_request import ChatRequest
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import provider_for
from tests.fake_answers import CALL, Words
from tests.fake_upstream import STRANGE, Behaviour, FakeUpstream
from tests.protocol.providers.exchange import exchange

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
ASKED = ToolCall("call_1", "weather", '{"city": "Oslo"}')
CONVERSATION = (
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "Weather in Oslo?"),
    ChatMessage("assistant", "", (ASKED,)),
    ChatMessage("tool", '{"sky": "grey"}', tool_call_id="call_1"),
    ChatMessage("assistant", "Grey."),
    ChatMessage("user", "And tomorrow?"),
)
KEY = "sk-canary"

Send: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass
class Reading:
    """What an official client makes of an answer."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reason: str | None = None
    """In the API's own words."""
    identity: str | None = None


def clients(url: str) -> dict[str, Any]:
    """Each official client, with the base URL of a fake; none tries again."""
    return {
        "openai": openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0),
        "anthropic": anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0),
        "cohere": cohere.AsyncClientV2(base_url=url, api_key=KEY),
        "cohere v1": cohere.AsyncClient(base_url=url, api_key=KEY),
    }


PATHS = {"openai": "", "anthropic": "/v1", "cohere": "/v2", "cohere v1": "/v1"}
"""Below the base URL of a client, our base URL for the same place."""


async def close(known: dict[str, Any]) -> None:
    """Close the clients."""
    for name in ("openai", "anthropic"):
        await known[name].close()
    for name in ("cohere", "cohere v1"):
        await known[name]._client_wrapper.httpx_client.httpx_client.aclose()


def settings_of(name: str, url: str) -> Settings:
    """Where our request for a provider goes."""
    return Settings(url + PATHS[name], Secret(KEY))


async def both_bodies(name: str, chat: ChatRequest, send: Callable[[Any], Awaitable[Any]]) -> tuple[Any, Any]:
    """The body of an official client's request, and that of ours; both were sent to one path, with one key."""
    async with FakeUpstream() as upstream:
        known = clients(upstream.url)
        await send(known[name])
        await exchange(name.partition(" ")[0], chat, settings_of(name, upstream.url))
        await close(known)
    theirs, ours = upstream.received
    assert (theirs.method, theirs.path, theirs.key) == (ours.method, ours.path, ours.key)
    return theirs.json, ours.json


TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "grey"}'},
    {"role": "assistant", "content": "Grey."},
    {"role": "user", "content": "And tomorrow?"},
]
BLOCKS = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": '{"sky": "grey"}'}]},
    {"role": "assistant", "content": "Grey."},
    {"role": "user", "content": "And tomorrow?"},
]
CALL_V1 = {"name": "weather", "parameters": {"city": "Oslo"}}
HISTORY = [
    {"role": "USER", "message": "Weather in Oslo?"},
    {"role": "CHATBOT", "message": "", "tool_calls": [CALL_V1]},
    {"role": "TOOL", "tool_results": [{"call": CALL_V1, "outputs": [{"sky": "grey"}]}]},
    {"role": "CHATBOT", "message": "Grey."},
]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
BODIES: list[tuple[str, ChatRequest, dict[str, Any]]] = [
    (
        "openai",
        ChatRequest(
            CONVERSATION,
            {"temperature": 0.5, "topP": 0.9, "maxTokens": 9, "stop": ["x"], "seed": 1, "n": 1},
            tools=(TOOL,),
            tool_choice="named",
            tool_name="weather",
            parallel_tool_calls=False,
            response_format=JSON_SCHEMA,
            logprobs=True,
            top_logprobs=2,
            stream=True,
        ),
        {
            "messages": TURNS,
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 9,
            "stop": ["x"],
            "seed": 1,
            "n": 1,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "parallel_tool_calls": False,
            "response_format": JSON_SCHEMA,
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "anthropic",
        ChatRequest(
            CONVERSATION,
            {"temperature": 0.5, "topK": 3, "maxTokens": 9, "stop": ["x"]},
            tools=(TOOL,),
            tool_choice="required",
            parallel_tool_calls=False,
            response_format=JSON_SCHEMA,
        ),
        {
            "system": "Be brief.",
            "messages": BLOCKS,
            "max_tokens": 9,
            "stop_sequences": ["x"],
            "extra_body": {"temperature": 0.5, "top_k": 3},  # the API has them, the newest client does not
            "tools": [{"name": "weather", "description": "The weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    (
        "cohere",
        ChatRequest(
            CONVERSATION,
            {"temperature": 0.5, "topP": 0.9, "topK": 3, "maxTokens": 9, "stop": ["x"], "seed": 1},
            tools=(TOOL,),
            tool_choice="required",
            response_format=JSON_SCHEMA,
            logprobs=True,
        ),
        {
            "messages": TURNS,
            "temperature": 0.5,
            "p": 0.9,
            "k": 3,
            "max_tokens": 9,
            "stop_sequences": ["x"],
            "seed": 1,
            "tools": [TOOL],
            "tool_choice": "REQUIRED",
            "logprobs": True,
            "response_format": {"type": "json_object", "json_schema": SCHEMA},
        },
    ),
    (
        "cohere v1",
        ChatRequest(CONVERSATION, {"temperature": 0.5, "topP": 0.9, "stop": ["x"]}, tools=(TOOL,)),
        {
            "preamble": "Be brief.",
            "chat_history": HISTORY,
            "message": "And tomorrow?",
            "temperature": 0.5,
            "p": 0.9,
            "stop_sequences": ["x"],
            "tools": [
                {
                    "name": "weather",
                    "description": "The weather",
                    "parameter_definitions": {
                        "city": {"type": "str", "description": "Where", "required": True},
                        "days": {"type": "int", "required": False},
                    },
                }
            ],
        },
    ),
]


@pytest.mark.parametrize(("name", "chat", "words"), BODIES, ids=[one[0] for one in BODIES])
async def test_one_conversation_has_equivalent_bodies(name: str, chat: ChatRequest, words: dict[str, Any]) -> None:
    """Turns, tools, answers of tools, parameters and the form of the text, at the same path with the same key."""

    async def send(client: Any) -> None:
        if name == "openai":
            async with await client.chat.completions.create(model="m-1", **words) as stream:
                assert [chunk async for chunk in stream]
        elif name == "anthropic":
            await client.messages.create(model="m-1", **words)
        else:
            await client.chat(model="m-1", **words)

    theirs, ours = await both_bodies(name, chat, send)
    assert ours == {"stream": False, **theirs} if "stream" in ours else ours == theirs


async def read_openai(client: Any, *, stream: bool) -> Reading:
    """By OpenAI's client."""
    words = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}]}
    if not stream:
        whole = await client.chat.completions.create(**words)
        (choice,) = whole.choices
        calls = tuple((c.function.name, c.function.arguments) for c in choice.message.tool_calls or ())
        usage = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        return Reading(choice.message.content or "", calls, *usage, choice.finish_reason, whole.id)
    found, names, arguments = Reading(), [], []
    async with await client.chat.completions.create(**words, stream=True) as chunks:
        async for chunk in chunks:
            found.identity = chunk.id
            for choice in chunk.choices:
                found.text += choice.delta.content or ""
                found.reason = choice.finish_reason or found.reason
                for call in choice.delta.tool_calls or ():
                    names += [call.function.name] if call.function.name else []
                    arguments += [call.function.arguments] if call.function.arguments else []
            if chunk.usage:
                found.prompt_tokens, found.completion_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
    found.calls = tuple(zip(names, arguments, strict=True))
    return found


async def read_anthropic(client: Any, *, stream: bool) -> Reading:
    """By Anthropic's client, which folds a stream itself."""
    words = {"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    if stream:
        async with client.messages.stream(**words) as events:
            message = await events.get_final_message()
    else:
        message = await client.messages.create(**words)
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = tuple((block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use")
    usage = (message.usage.input_tokens, message.usage.output_tokens)
    return Reading(text, calls, *usage, message.stop_reason, message.id)


async def read_cohere(client: Any, *, stream: bool) -> Reading:
    """By Cohere's client, version 2."""
    words = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}]}
    if not stream:
        whole = await client.chat(**words)
        text = "".join(block.text for block in whole.message.content or ())
        calls = tuple((c.function.name, c.function.arguments) for c in whole.message.tool_calls or ())
        tokens = whole.usage.tokens
        return Reading(text, calls, tokens.input_tokens, tokens.output_tokens, whole.finish_reason, whole.id)
    found, names, arguments = Reading(), [], []
    async for event in client.chat_stream(**words):
        if event.type == "message-start":
            found.identity = event.id
        elif event.type == "content-delta":
            found.text += event.delta.message.content.text
        elif event.type == "tool-call-start":
            names.append(event.delta.message.tool_calls.function.name)
        elif event.type == "tool-call-delta":
            arguments.append(event.delta.message.tool_calls.function.arguments)
        elif event.type == "message-end":
            tokens = event.delta.usage.tokens
            found.prompt_tokens, found.completion_tokens = tokens.input_tokens, tokens.output_tokens
            found.reason = event.delta.finish_reason
    found.calls = tuple(zip(names, arguments, strict=True))
    return found


async def read_cohere_v1(client: Any, *, stream: bool) -> Reading:
    """By Cohere's client, version 1."""
    words, whole, text = {"model": "m-1", "message": "Hi"}, None, ""
    if stream:
        async for event in client.chat_stream(**words):
            text += event.text if event.event_type == "text-generation" else ""
            whole = event.response if event.event_type == "stream-end" else whole
    else:
        whole = await client.chat(**words)
        text = whole.text
    assert whole is not None
    calls = tuple((call.name, json.dumps(call.parameters)) for call in whole.tool_calls or ())
    tokens = whole.meta.tokens
    return Reading(text, calls, tokens.input_tokens, tokens.output_tokens, whole.finish_reason, whole.response_id)


READERS = {
    "openai": read_openai,
    "anthropic": read_anthropic,
    "cohere": read_cohere,
    "cohere v1": read_cohere_v1,
}
IDS: dict[str, dict[str, str]] = {
    "openai": {"id": "chatcmpl-1", "system_fingerprint": "fp_1"},
    "anthropic": {"id": "msg_1"},
    "cohere": {"response_id": "r-1"},
    "cohere v1": {"response_id": "r-1", "generation_id": "g-1"},
}
ANSWERS: dict[str, tuple[Words, dict[str, str]]] = {
    "a text": (Words(), {"anthropic": "end_turn", "cohere": "COMPLETE", "cohere v1": "COMPLETE"}),
    "strange characters": (STRANGE, {"anthropic": "end_turn", "cohere": "COMPLETE", "cohere v1": "COMPLETE"}),
    "the limit": (
        Words(reason="length"),
        {"anthropic": "max_tokens", "cohere": "MAX_TOKENS", "cohere v1": "MAX_TOKENS"},
    ),
    "a call": (
        Words((), (CALL,), "tool_calls"),
        {"anthropic": "tool_use", "cohere": "TOOL_CALL", "cohere v1": "COMPLETE"},
    ),
}
"""What the fake answers, and each API's own word for the ending."""
CUT_BY_THEIR_CLIENT = {("cohere v1", "strange characters")}
"""Cohere's client cuts JSON lines at U+2028, as its HTTP library does, and fails."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", READERS)
async def test_one_answer_is_read_alike(name: str, *, stream: bool) -> None:
    """Text, calls, counts, ending and id, also where each byte comes alone."""
    async with FakeUpstream() as upstream:
        known = clients(upstream.url)
        for title, (words, reasons) in ANSWERS.items():
            upstream.plan += [Behaviour(words, torn=True)] * 2
            chat = ChatRequest((ChatMessage("user", "Hi"),), stream=stream)
            outcome, answer, reader = await exchange(name.partition(" ")[0], chat, settings_of(name, upstream.url))
            choice = answer.choices[0]
            assert (outcome, choice.content, choice.finish_reason) == (OK, words.text, words.reason)
            assert answer.usage == TokenUsage(7, 5)
            assert reader is not None
            assert reader.ids == IDS[name]
            if stream and (name, title) in CUT_BY_THEIR_CLIENT:
                upstream.plan.clear()
                continue
            theirs = await READERS[name](known[name], stream=stream)
            assert (theirs.text, theirs.prompt_tokens, theirs.completion_tokens) == (choice.content, 7, 5)
            assert theirs.calls == tuple((call.name, call.arguments) for call in choice.tool_calls)
            assert theirs.reason == reasons.get(name, words.reason)
            assert theirs.identity in reader.ids.values()
        await close(known)


def test_ollama_is_written_as_its_documentation_has_it() -> None:
    """There is no official client here: options, arguments as an object, answers by the tool's name, a schema."""
    chat = ChatRequest(
        CONVERSATION, {"temperature": 0.5, "maxTokens": 9, "keep_alive": "5m", "num_ctx": 512}, (TOOL,),
        response_format=JSON_SCHEMA, logprobs=True, top_logprobs=2, stream=True,
    )  # fmt: skip
    body = json.loads(provider_for("ollama", Settings()).request(chat, "llama3", Settings()).body)
    assert body == {
        "model": "llama3",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Oslo?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
            },
            {"role": "tool", "content": '{"sky": "grey"}', "tool_name": "weather"},
            {"role": "assistant", "content": "Grey."},
            {"role": "user", "content": "And tomorrow?"},
        ],
        "options": {"temperature": 0.5, "num_predict": 9, "num_ctx": 512},
        "keep_alive": "5m",
        "tools": [TOOL],
        "format": SCHEMA,
        "logprobs": True,
        "top_logprobs": 2,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_ollama_answers(*, stream: bool) -> None:
    """Prompt tokens are its prompt_eval_count; a call means tool_calls although it says stop; its time is an id."""
    async with FakeUpstream() as upstream:
        upstream.plan += [Behaviour(STRANGE, torn=True), Behaviour(Words((), (CALL,), "tool_calls"))]
        chat = ChatRequest((ChatMessage("user", "Hi"),), stream=stream)
        outcome, answer, reader = await exchange("ollama", chat, Settings(upstream.url))
        assert (outcome, answer.choices[0].content, answer.usage) == (OK, STRANGE.text, TokenUsage(7, 5))
        assert reader is not None
        assert (reader.ids, reader.model) == ({"created_at": "2026-01-01T00:00:00Z"}, "m-1")
        outcome, answer, _ = await exchange("ollama", chat, Settings(upstream.url))
        assert answer.choices[0].tool_calls == (ToolCall("call_0", CALL.name, CALL.arguments),)
        assert answer.choices[0].finish_reason == "tool_calls"
