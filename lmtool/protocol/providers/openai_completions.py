"""OpenAI's chat completions: request bodies, and events of whole and streamed answers, text completions included.

Most other servers have the same API at base URLs of their own.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING

from lmtool.core.reasoning import SWITCHES
from lmtool.core.tool_arguments import object_text
from lmtool.protocol.providers.answer_events import (
    ChoiceFinished,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    read_logprobs,
    token_entries,
)
from lmtool.protocol.providers.chat_request import MultimodalMessage
from lmtool.protocol.providers.json_values import list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.core.types import ChatMessage
    from lmtool.protocol.providers.answer_events import AnswerEvent, ChunkToken, TextKind
    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking

_REASONING = ("reasoning_content", "reasoning")
"""Members in which servers send the thought; OpenAI itself does not send it."""


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """Events of a chunk, or of a whole answer."""
    for place, choice in enumerate(list_of(value.get("choices"))):
        if isinstance(choice, dict):
            yield from _choice(choice, place)
    usage = value.get("usage")
    if isinstance(usage, dict):
        yield TokenUsage.of(usage, "prompt_tokens", "completion_tokens")


def _choice(choice: Mapping[str, object], place: int) -> Iterator[AnswerEvent]:
    index = choice.get("index")
    number = index if type(index) is int and index >= 0 else place
    message = object_of(choice.get("delta", choice.get("message", choice)))
    thought, tokens = _tokens(choice, message)
    for text, kind in _texts(message):
        if kind == "reasoning":
            yield TextDelta(number, text, thought, kind)
            thought = ()
        else:
            yield TextDelta(number, text, tokens, kind)
            tokens = ()
    if thought:
        yield TextDelta(number, "", thought, "reasoning")
    if tokens:
        yield TextDelta(number, "", tokens)
    yield from _calls(message, number)
    reason = choice.get("finish_reason")
    if reason is not None:
        stop = choice.get("stop_reason")
        word = "tool_calls" if reason == "function_call" else str(reason)
        yield ChoiceFinished(number, word, stop if isinstance(stop, str) else None)


def _tokens(
    choice: Mapping[str, object], message: Mapping[str, object]
) -> tuple[tuple[ChunkToken, ...], tuple[ChunkToken, ...]]:
    """Tokens of thought and answer. lmtool sends two lists; vLLM sends one, marks between them included."""
    logprobs = choice.get("logprobs")
    thought, tokens = token_entries(object_of(logprobs).get("reasoning_content")), read_logprobs(logprobs)
    texts = {kind: text for text, kind in _texts(message)}
    if thought or not tokens or "reasoning" not in texts:
        return thought, tokens
    pieces = [token.piece.encode() if isinstance(token.piece, str) else token.piece for token in tokens]
    begin = b"".join(pieces).rfind(texts["text"].encode()) if "text" in texts else -1
    if begin < 0:
        return tokens, ()
    first = sum(end <= begin for end in accumulate(map(len, pieces)))
    return tokens[:first], tokens[first:]


def _texts(message: Mapping[str, object]) -> Iterator[tuple[str, TextKind]]:
    """Non-empty texts of a message, each with its kind; a choice of a text completion is its own message."""
    for name in _REASONING:
        if text := text_of(message.get(name)):
            yield text, "reasoning"
            break
    content = message.get("content", message.get("text"))
    for part in content if isinstance(content, list) else ():  # some servers send content parts
        if text := text_of(object_of(part).get("text")):
            yield text, "text"
    if isinstance(content, str) and content:
        yield content, "text"
    if text := text_of(message.get("refusal")):
        yield text, "refusal"


def _calls(message: Mapping[str, object], choice: int) -> Iterator[ToolCallDelta]:
    calls = list_of(message.get("tool_calls"))
    older = message.get("function_call")
    for place, call in enumerate(calls or ([{"function": older}] if isinstance(older, dict) else ())):
        members = object_of(call)
        function, index = object_of(members.get("function")), members.get("index")
        yield ToolCallDelta(
            choice,
            index if type(index) is int else place,
            text_of(members.get("id")) or None,
            text_of(function.get("name")) or None,
            text_of(function.get("arguments")),
        )


def write_chat(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Body of a chat completion request. Streams are asked to end with their usage."""
    body: dict[str, object] = {
        "model": model,
        "messages": [write_message(message) for message in chat.messages],
        **parameters,
    }
    if chat.tools:
        body["tools"] = list(chat.tools)
        body |= write_tool_choice(chat)
    if chat.response_format is not None:
        body["response_format"] = chat.response_format
    if chat.logprobs:
        body["logprobs"] = True
        if chat.top_logprobs is not None:
            body["top_logprobs"] = chat.top_logprobs
    if chat.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def write_message(message: ChatMessage) -> dict[str, object]:
    """One message, also for other APIs that follow OpenAI's."""
    turn: dict[str, object] = {"role": message.role, "content": message.content}
    if isinstance(message, MultimodalMessage):
        turn["content"] = json.loads(message.parts)
    if message.tool_calls:
        turn["content"] = message.content or None
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": object_text(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


def write_tool_choice(chat: ChatRequest) -> dict[str, object]:
    """Members `tool_choice` and `parallel_tool_calls`, if the request sets them."""
    named = {"type": "function", "function": {"name": chat.tool_name}}
    choice = {} if chat.tool_choice is None else {"tool_choice": chat.tool_choice}
    parallel = {} if chat.parallel_tool_calls is None else {"parallel_tool_calls": chat.parallel_tool_calls}
    return {**choice, **({"tool_choice": named} if chat.tool_choice == "named" else {}), **parallel}


def write_thinking(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Effort for OpenAI's API, which has no token budget; models that do not think reject it."""
    effort = "none" if thinking.enabled is False else thinking.effort
    return {} if effort is None else {"reasoning_effort": effort}


def write_compatible_thinking(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Variables of chat templates, and vLLM's parameters, which other compatible servers ignore."""
    own: dict[str, object] = {}
    if thinking.effort is not None and thinking.enabled is not False:
        own["reasoning_effort"] = thinking.effort
    if thinking.budget is not None:
        own["thinking_token_budget"] = thinking.budget
    if thinking.enabled is not None:
        own["chat_template_kwargs"] = dict.fromkeys(SWITCHES, thinking.enabled)
    return own
