"""Ollama's own API: chat request bodies, and events of chat and generate answers, whole or streamed."""

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
"""Parameters outside `options`."""

_LEVELS = frozenset({"low", "medium", "high"})


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """Events of a line, or of a whole answer, which has the same form."""
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
    """Body of a chat, with the parameters in `options`."""
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
    """One message. names: tool names by call id; tool results give the tool's name because calls have no ids."""
    turn: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content,
    }
    if isinstance(message, MultimodalMessage):
        parts = map(object_of, json.loads(message.parts))
        images = [object_of(part["image_url"]) for part in parts if part.get("type") == "image_url"]
        # Base64 only: this API supports neither media types nor URLs.
        turn["images"] = [text_of(image.get("url")).partition(",")[2] for image in images]
    if message.tool_calls:
        turn["tool_calls"] = [
            {"function": {"name": call.name, "arguments": arguments_object(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        turn["tool_name"] = message.name or names.get(message.tool_call_id or "", "")
    return turn


def write_thinking(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Member `think`: a switch, or a level for some models. Models that do not think reject it if enabled."""
    if thinking.enabled is None:
        return {}
    return {"think": thinking.effort if thinking.enabled and thinking.effort in _LEVELS else thinking.enabled}
