"""Cohere's chat, version 2: requests close to OpenAI's, answers whole and as server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from lmtool.protocol.providers.json_values import count_of, list_of, logprob_of, object_of, text_of
from lmtool.protocol.providers.openai_completions import write_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.protocol.providers.answer_events import AnswerEvent, TextKind
    from lmtool.protocol.providers.chat_request import ChatRequest

REASONS: Mapping[str, str] = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "ERROR_LIMIT": "length",
    "TOOL_CALL": "tool_calls",
    "ERROR_TOXIC": "content_filter",
}
"""OpenAI's words for Cohere's, of both versions."""
FAILURES = ("ERROR", "TIMEOUT", "USER_CANCEL")
"""Reasons that mean that the answer broke off."""
_KINDS: Mapping[str, TextKind] = {"thinking": "reasoning", "text": "text"}
_ROLES: Mapping[str, str] = {"developer": "system"}


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a streamed event, by its type, or of a whole answer."""
    kind, place = value.get("type"), count_of(value.get("index")) or 0
    delta = object_of(value.get("delta"))
    message = object_of(delta.get("message"))
    if kind in ("content-start", "content-delta"):
        yield from _content(object_of(message.get("content")), _tokens(value.get("logprobs")))
    elif kind in ("tool-call-start", "tool-call-delta"):
        yield _call(object_of(message.get("tool_calls")), place)
    elif kind == "tool-plan-delta":
        yield from _plan(message)
    elif kind == "message-end":
        yield from _ending(delta)
    elif kind is None and "finish_reason" in value:
        yield from _whole(value)


def _whole(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    message = object_of(value.get("message"))
    yield from _plan(message)
    tokens = _tokens(value.get("logprobs"))
    for block in list_of(message.get("content")):
        for event in _content(object_of(block), ()):
            yield TextDelta(0, event.text, tokens if event.kind == "text" else (), event.kind)
            tokens = () if event.kind == "text" else tokens
    for place, call in enumerate(list_of(message.get("tool_calls"))):
        yield _call(object_of(call), place)
    yield from _ending(value)


def _content(block: Mapping[str, object], tokens: tuple[ChunkToken, ...]) -> Iterator[TextDelta]:
    for name, kind in _KINDS.items():
        if text := text_of(block.get(name)):
            yield TextDelta(0, text, tokens, kind)


def _plan(message: Mapping[str, object]) -> Iterator[TextDelta]:
    """What the model says about the calls that it will make."""
    if plan := text_of(message.get("tool_plan")):
        yield TextDelta(0, plan, kind="reasoning")


def _call(call: Mapping[str, object], place: int) -> ToolCallDelta:
    function = object_of(call.get("function"))
    name, arguments = text_of(function.get("name")) or None, text_of(function.get("arguments"))
    return ToolCallDelta(0, place, text_of(call.get("id")) or None, name, arguments)


def _tokens(value: object) -> tuple[ChunkToken, ...]:
    """Tokens with logprobs: pieces of text, of which only those of a single token are named here."""
    tokens = []
    for item in map(object_of, list_of(value) or [value]):
        logprobs = list_of(item.get("logprobs"))
        if logprobs:
            tokens.append(
                ChunkToken(text_of(item.get("text")), logprob_of(logprobs[0]) if len(logprobs) == 1 else None)
            )
    return tuple(tokens)


def _ending(members: Mapping[str, object]) -> Iterator[AnswerEvent]:
    yield from usage_events(object_of(members.get("usage")))
    yield from finish_events(text_of(members.get("finish_reason")), text_of(members.get("error")))


def usage_events(usage: Mapping[str, object]) -> Iterator[TokenUsage]:
    """The counts of an answer of either version: all tokens where the answer has them, else the billed ones."""
    counts = object_of(usage.get("tokens")) or object_of(usage.get("billed_units"))
    if counts:
        prompt, completion = (_whole_number(counts.get(name)) for name in ("input_tokens", "output_tokens"))
        yield TokenUsage(prompt, completion, _whole_number(usage.get("cached_tokens")))


def _whole_number(value: object) -> int | None:
    """A count; Cohere's specification has them as floating-point numbers."""
    return count_of(int(value)) if isinstance(value, float) and value.is_integer() else count_of(value)


def finish_events(reason: str, error: str = "") -> Iterator[ChoiceFinished | AnswerFailed]:
    """The ending that Cohere's word for it means; none for an empty one."""
    if reason in FAILURES:
        yield AnswerFailed(error or f"the answer ended with {reason}", reason)
    elif reason:
        yield ChoiceFinished(0, REASONS.get(reason, reason))


def write_chat(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The body of a chat. A `preamble` of a configuration, which version 1 has, is the first system turn.

    Raises `RequestError` for a tool that must be called by name.
    """
    own = {name: value for name, value in parameters.items() if name != "preamble"}
    preamble = [{"role": "system", "content": parameters["preamble"]}] if parameters.get("preamble") else []
    messages = [{**write_message(one), "role": _ROLES.get(one.role, one.role)} for one in chat.messages]
    body: dict[str, object] = {"model": model, "messages": [*preamble, *messages], **own, "stream": chat.stream}
    if chat.tools:
        body["tools"] = list(chat.tools)
        if chat.tool_choice == "named":
            raise RequestError("cohere takes no name of a tool that must be called; send tool_choice: required")
        if chat.tool_choice in ("none", "required"):
            body["tool_choice"] = chat.tool_choice.upper()
    if chat.response_format is not None:
        body["response_format"] = write_response_format(chat.response_format, "json_schema")
    if chat.logprobs:
        body["logprobs"] = True
    return body


def write_response_format(response_format: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The form of a text as Cohere has it: one type for JSON, with a schema or without. name: of the schema."""
    if response_format.get("type") != "json_schema":
        return response_format
    return {"type": "json_object", name: object_of(response_format.get("json_schema")).get("schema")}
