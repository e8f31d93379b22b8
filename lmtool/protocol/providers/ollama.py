"""Ollama's own API: requests to chat, and answers of chat and generate, whole or a JSON line for each piece."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta, token_entries
from lmtool.protocol.providers.chat_request import MultimodalMessage
from lmtool.protocol.providers.json_values import count_of, list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.core.types import ChatMessage
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking

_OUTSIDE_OPTIONS = ("keep_alive", "think")
"""Parameters that stand beside `options`."""

_LEVELS = frozenset({"low", "medium", "high"})


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a line, or of a whole answer, which has the same form."""
    message = object_of(value.get("message", value))
    tokens = token_entries(value.get("logprobs"))
    if thinking := text_of(message.get("thinking")):
        yield TextDelta(0, thinking, tokens, "reasoning")
        tokens = ()
    text = text_of(message.get("content", message.get("response")))
    if text or tokens:
        yield TextDelta(0, text, tokens)
    for place, call in enumerate(list_of(message.get("tool_calls"))):
        function = object_of(object_of(call).get("function"))
        arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
        yield ToolCallDelta(0, place, name=text_of(function.get("name")), arguments=arguments)
    if value.get("done") is True:
        yield TokenUsage(count_of(value.get("prompt_eval_count")), count_of(value.get("eval_count")))
        yield ChoiceFinished(0, text_of(value.get("done_reason")) or "stop")


def write_chat(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The body of a chat. Parameters are `options`."""
    names = {call.id: call.name for message in chat.messages for call in message.tool_calls}
    body: dict[str, object] = {"model": model, "stream": chat.stream}
    body["messages"] = [_write_message(message, names) for message in chat.messages]
    body |= {name: value for name, value in parameters.items() if name in _OUTSIDE_OPTIONS}
    if options := {name: value for name, value in parameters.items() if name not in _OUTSIDE_OPTIONS}:
        body["options"] = options
    if chat.tools:
        body["tools"] = list(chat.tools)
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        body["format"] = object_of(chat.response_format.get("json_schema")).get("schema", "json")
    if chat.logprobs:
        body |= {"logprobs": True, "top_logprobs": chat.top_logprobs or 0}
    return body


def _write_message(message: ChatMessage, names: Mapping[str, str]) -> dict[str, object]:
    """One turn. names: of the tools, by the ids of calls; answers name the tool, as calls have no ids here."""
    turn: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content,
    }
    if isinstance(message, MultimodalMessage):
        parts = map(object_of, json.loads(message.parts))
        images = [object_of(part["image_url"]) for part in parts if part.get("type") == "image_url"]
        # In base64: this API has no place for the type of an image, nor for an address.
        turn["images"] = [text_of(image.get("url")).partition(",")[2] for image in images]
    if message.tool_calls:
        turn["tool_calls"] = [
            {"function": {"name": one.name, "arguments": arguments_object(one.arguments)}} for one in message.tool_calls
        ]
    if message.role == "tool":
        turn["tool_name"] = message.name or names.get(message.tool_call_id or "", "")
    return turn


def write_thinking(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Ollama's API has a switch, which models that do not think refuse where it is on, and levels for some."""
    if thinking.enabled is None:
        return {}
    return {"think": thinking.effort if thinking.enabled and thinking.effort in _LEVELS else thinking.enabled}
