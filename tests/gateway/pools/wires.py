"""Every wire on which a pool streams: what each brings of one answer, in one form."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from lmtool.protocol.lmtp.client import LmtpClient
from tests.gateway.pools.running import Gateway

WORDS = "Hello there"


@dataclass
class Streamed:
    """One streamed answer."""

    pieces: list[str] = field(default_factory=list)
    seams: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Each with the characters of text before the event that tells it."""
    calls: str = ""
    """Names and arguments of tool calls."""
    tokens: tuple[int, int] | None = None
    """Of prompt and answer."""
    finish_reason: str | None = None
    error: str | None = None
    attempts: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, event: dict[str, Any], text: str | None) -> None:
        """Take an event and the text that it adds."""
        if "seam" in event:
            self.seams.append((len(self.text), event["seam"]))
        if text:
            self.pieces.append(text)


def events_of(body: str) -> list[dict[str, Any]]:
    """The JSON of server-sent events."""
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith("data:") and "[DONE]" not in line]


def _listed(attempts: Any) -> str:
    return ", ".join(f"{one['model']} {one['outcome']}" for one in attempts)


def _unified(found: Streamed, piece: dict[str, Any]) -> None:
    if "name" in piece:
        found.error = piece["message"]
        found.attempts = _listed(piece["attempts"])
        return
    answer = piece["provider_response"]
    found.add(piece, answer["message"]["content"])
    if piece["finish_reason"]:
        count = answer["token_count"]
        found.tokens = count["prompt_tokens"], count["response_tokens"]
        found.finish_reason = piece["finish_reason"]
        found.attempts = _listed(piece.get("attempts", ()))


async def unified(served: Gateway, **asked: Any) -> Streamed:
    """`POST /v1/language/{pool}/chat`."""
    found = Streamed()
    body = {"message": {"role": "user", "content": WORDS}, "stream": True} | _spelled(asked, max_tokens="maxTokens")
    for piece in events_of((await served.post("/v1/language/default/chat", body))[2]):
        _unified(found, piece)
    return found


async def chat_stream(served: Gateway, **asked: Any) -> Streamed:
    """`WS /v1/language/{pool}/chatStream`."""
    found = Streamed()
    body = {"id": "x", "message": {"role": "user", "content": WORDS}} | _spelled(asked, max_tokens="maxTokens")
    async with served.session.ws_connect(f"{served.url}/v1/language/default/chatStream") as websocket:
        await websocket.send_json(body)
        while found.finish_reason is None and found.error is None:
            told = await websocket.receive_json(timeout=20)
            _unified(found, told.get("chunk") or told["error"])
    return found


async def openai(served: Gateway, **asked: Any) -> Streamed:
    """`POST /v1/chat/completions`."""
    found = Streamed()
    body = {"model": "default", "messages": [{"role": "user", "content": WORDS}], **asked}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in events_of((await served.post("/v1/chat/completions", body))[2]):
        if "error" in chunk:
            found.error = chunk["error"]["message"]
            continue
        for choice in chunk["choices"]:
            found.add(chunk, choice["delta"].get("content"))
            for call in choice["delta"].get("tool_calls", ()):
                found.calls += call["function"].get("name", "") + call["function"]["arguments"]
            found.finish_reason = found.finish_reason or choice["finish_reason"]
        if chunk.get("usage"):
            found.tokens = chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]
    return found


async def anthropic(served: Gateway, **asked: Any) -> Streamed:
    """`POST /v1/messages`."""
    found = Streamed()
    body = {"model": "default", "max_tokens": 100, "messages": [{"role": "user", "content": WORDS}], **asked}
    for event in events_of((await served.post("/v1/messages", body | {"stream": True}))[2]):
        if event["type"] == "error":
            found.error = event["error"]["message"]
            continue
        found.add(event, event.get("delta", {}).get("text"))
        if event["type"] == "message_delta":
            found.finish_reason = {"end_turn": "stop", "max_tokens": "length"}[event["delta"]["stop_reason"]]
            usage = event["usage"]
            prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
            found.tokens = prompt, usage["output_tokens"]
    return found


async def responses(served: Gateway, **asked: Any) -> Streamed:
    """`POST /v1/responses`."""
    found = Streamed()
    body = {"model": "default", "input": WORDS, "stream": True} | _spelled(asked, max_tokens="max_output_tokens")
    for event in events_of((await served.post("/v1/responses", body))[2]):
        found.add(event, event["delta"] if event["type"] == "response.output_text.delta" else None)
        if event["type"] == "response.failed":
            found.error = event["response"]["error"]["message"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            whole = event["response"]
            found.finish_reason = {"completed": "stop", "incomplete": "length"}[whole["status"]]
            found.tokens = whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]
            assert whole["output"][0]["content"][0]["text"] == found.text
    return found


async def lmtp(served: Gateway, **asked: Any) -> Streamed:
    """A GENERATE in text mode."""
    found, prompt = Streamed(), ChatPrompt((ChatMessage("user", WORDS),))
    deadline = asked.pop("deadline", None)
    async with LmtpClient(served.url.replace("http", "ws")) as client:
        sampling = SamplingParams(**({"max_tokens": 100} | asked))
        request = GenerateRequest("lmtp", prompt, sampling, model="default", text=True, deadline=deadline)
        async for output in stream(client, request):
            seam = output.seam
            found.add(
                {} if seam is None else {"seam": {name: getattr(seam, name) for name in seam.__slots__}}, output.text
            )
            found.error, found.finish_reason = output.error, output.finish_reason
            found.attempts = output.attempts
            if output.usage is not None:
                found.tokens = output.usage.prompt_tokens, output.usage.completion_tokens
    return found


def _spelled(asked: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in asked.items()}


WIRES: dict[str, Callable[..., Awaitable[Streamed]]] = {
    "unified": unified,
    "chatStream": chat_stream,
    "openai": openai,
    "anthropic": anthropic,
    "responses": responses,
    "lmtp": lmtp,
}
