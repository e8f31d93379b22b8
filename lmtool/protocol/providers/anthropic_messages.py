"""Anthropic's Messages API: request bodies, and events of whole and streamed answers. It has no logprobs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import RequestError
from lmtool.core.reasoning import ThoughtSignature
from lmtool.core.signed_message import signed_thoughts
from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.protocol.providers.chat_request import MultimodalMessage
from lmtool.protocol.providers.json_values import count_of, list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.core.reasoning import SignedThought
    from lmtool.core.types import ChatMessage
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking, ToolChoice

    Block: TypeAlias = dict[str, object]

MAX_TOKENS = 4096
"""Token limit if the request has none; the API requires one."""
_LEAST_BUDGET = 1024
"""Smallest `budget_tokens` that the API accepts."""
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_CHOICES: Mapping[ToolChoice, str] = {"auto": "auto", "none": "none", "required": "any", "named": "tool"}
_SYSTEM = ("system", "developer")
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,")


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """Answer events of one streamed event, by its type, or of a whole message."""
    kind, place = value.get("type"), count_of(value.get("index")) or 0
    if kind == "content_block_delta":
        delta = object_of(value.get("delta"))
        if "partial_json" in delta:
            yield ToolCallDelta(0, place, arguments=text_of(delta["partial_json"]))
        else:
            yield from _text(delta)
    elif kind == "content_block_start":
        yield from _block(object_of(value.get("content_block")), place, whole=False)
    elif kind == "message_delta":
        yield from _ending({**object_of(value.get("delta")), "usage": value.get("usage")})
    elif kind == "message_start":
        yield from _ending({**object_of(value.get("message")), "stop_reason": None})
    elif kind == "message":
        for number, block in enumerate(list_of(value.get("content"))):
            yield from _block(object_of(block), number, whole=True)
        yield from _ending(value)


def _block(block: Mapping[str, object], place: int, *, whole: bool) -> Iterator[AnswerEvent]:
    """Events of a content block. whole: whether it is complete; otherwise it is only the start."""
    if "name" in block:
        arguments = json.dumps(block.get("input"), ensure_ascii=False) if whole else ""
        yield ToolCallDelta(0, place, text_of(block.get("id")) or None, text_of(block["name"]), arguments)
    else:
        yield from _text(block)


def _text(block: Mapping[str, object]) -> Iterator[TextDelta]:
    if text := text_of(block.get("text")):
        yield TextDelta(0, text)
    signature = _signature(block)
    if (thinking := text_of(block.get("thinking"))) or signature:
        yield TextDelta(0, thinking, kind="reasoning", signature=signature)


def _signature(block: Mapping[str, object]) -> ThoughtSignature | None:
    """Signature in a block or in the last delta of a block; a redacted block has only a signature."""
    if block.get("type") == "redacted_thinking":
        return ThoughtSignature(text_of(block.get("data")), is_redacted=True)
    value = text_of(block.get("signature"))
    return ThoughtSignature(value) if value else None


def _ending(message: Mapping[str, object]) -> Iterator[AnswerEvent]:
    usage = object_of(message.get("usage"))
    if usage:
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        counts = [count_of(usage.get(name)) for name in names]
        known = [count for count in counts if count is not None]
        yield TokenUsage(sum(known) if known else None, count_of(usage.get("output_tokens")), counts[-1])
    reason = message.get("stop_reason")
    if reason is not None:
        stop = message.get("stop_sequence")
        yield ChoiceFinished(0, _REASONS.get(str(reason), str(reason)), stop if isinstance(stop, str) else None)


def write_chat(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Body of a message request. System messages are moved to `system`; messages of one role in a row are joined.

    User and assistant must alternate. Raises `RequestError` for JSON output without a schema.
    """
    body: dict[str, object] = {"model": model, "max_tokens": MAX_TOKENS, **parameters}
    system = [message.content for message in chat.messages if message.role in _SYSTEM and message.content]
    turns = _turns([message for message in chat.messages if message.role not in _SYSTEM])
    if system and turns:
        own = parameters.get("system")
        body["system"] = "\n\n".join([own, *system] if isinstance(own, str) else system)
    body["messages"] = turns or [{"role": "user", "content": "\n\n".join(system)}]
    if chat.tools:
        body["tools"] = [_write_tool(object_of(tool.get("function"))) for tool in chat.tools]
        body |= _write_choice(chat)
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        output = object_of(parameters.get("output_config"))
        body["output_config"] = {**output, "format": _write_format(chat.response_format)}
    if isinstance(user := parameters.get("metadata"), str):  # Glide puts the user's id here
        body["metadata"] = {"user_id": user}
    if chat.stream:
        body["stream"] = True
    return body


def _write_format(response_format: Mapping[str, object]) -> dict[str, object]:
    schema = object_of(response_format.get("json_schema")).get("schema")
    if schema is None:
        raise RequestError("anthropic has no response_format json_object", "send a json_schema")
    return {"type": "json_schema", "schema": schema}


def _turns(messages: list[ChatMessage]) -> list[dict[str, object]]:
    joined: list[tuple[str, list[Block]]] = []
    for message in messages:
        role, blocks = "assistant" if message.role == "assistant" else "user", _blocks(message)
        if joined and joined[-1][0] == role:
            joined[-1][1].extend(blocks)
        elif blocks:
            joined.append((role, blocks))
    return [{"role": role, "content": _content(blocks)} for role, blocks in joined]


def _content(blocks: list[Block]) -> object:
    """Content of a message: a single text block becomes a plain text."""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks


def _blocks(message: ChatMessage) -> list[Block]:
    """Content blocks of a message; the API rejects empty texts."""
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.content}]
    if isinstance(message, MultimodalMessage):
        return [_write_part(object_of(part)) for part in json.loads(message.parts)]
    blocks = [_thinking_block(thought) for thought in signed_thoughts(message)]
    blocks += [{"type": "text", "text": message.content}] if message.content else []
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)})
    return blocks


def _thinking_block(thought: SignedThought) -> Block:
    """Block of a thought as the API sent it; without its signature the API rejects it."""
    if thought.signature.is_redacted:
        return {"type": "redacted_thinking", "data": thought.signature.value}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature.value}


def _write_part(part: Mapping[str, object]) -> Block:
    """Block of a content part. Raises `RequestError` for sounds."""
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text")}
    if kind != "image_url":
        raise RequestError(f"anthropic takes texts and images, not {kind}")
    url = text_of(object_of(part.get("image_url")).get("url"))
    if match := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": url[match.end() :]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _write_tool(function: Mapping[str, object]) -> dict[str, object]:
    optional = {name: function[name] for name in ("description", "strict") if function.get(name) is not None}
    schema = object_of(function.get("parameters")) or {"type": "object", "properties": {}}
    return {"name": function.get("name"), **optional, "input_schema": schema}


def _write_choice(chat: ChatRequest) -> dict[str, object]:
    """Member `tool_choice`; `auto` if the request only limits the number of calls."""
    if chat.tool_choice is None and chat.parallel_tool_calls is not False:
        return {}
    choice = chat.tool_choice or "auto"
    named = {"name": chat.tool_name} if choice == "named" else {}
    single = {"disable_parallel_tool_use": True} if chat.parallel_tool_calls is False and choice != "none" else {}
    return {"tool_choice": {"type": _CHOICES[choice], **named, **single}}


def write_thinking(thinking: Thinking, chat: ChatRequest, body: Mapping[str, object]) -> dict[str, object]:
    """Members for Anthropic's API, which thinks only on request. An effort alone is dropped: few models accept one.

    Empty after a prefill, and after calls whose thought lacks the signature that the API expects back.
    """
    if thinking.enabled is False:
        return {"thinking": {"type": "disabled"}} if "thinking" in body else {}
    if not thinking.enabled or chat.prefill or _follows_unsigned_calls(chat):
        return {}
    own: dict[str, object] = {}
    if thinking.effort in _EFFORTS:
        own["output_config"] = {**object_of(body.get("output_config")), "effort": thinking.effort}
    if thinking.budget is None:
        return {**own, "thinking": {"type": "adaptive"}}
    limit, budget = count_of(body.get("max_tokens")) or 0, max(thinking.budget, _LEAST_BUDGET)
    if "maxTokens" not in chat.parameters:  # the limit is our default, which leaves no tokens for a thought
        limit += budget
    budget = min(budget, limit - 1)
    if budget < _LEAST_BUDGET:
        return {}
    return {**own, "max_tokens": limit, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _follows_unsigned_calls(chat: ChatRequest) -> bool:
    """True if the last messages are tool results for calls from a message without a signed thought."""
    if chat.messages[-1].role != "tool":
        return False
    calling = next((message for message in reversed(chat.messages) if message.role == "assistant"), None)
    return calling is None or not signed_thoughts(calling)
