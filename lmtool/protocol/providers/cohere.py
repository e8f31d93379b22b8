"""Cohere's chat API, versions 1 and 2: request bodies, and events of whole and streamed answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from lmtool.protocol.providers.json_values import count_of, list_of, load, logprob_of, object_of, text_of
from lmtool.protocol.providers.openai_completions import write_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.core.types import ChatMessage, ToolCall
    from lmtool.protocol.providers.answer_events import AnswerEvent, TextKind
    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking


REASONS: Mapping[str, str] = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "ERROR_LIMIT": "length",
    "TOOL_CALL": "tool_calls",
    "ERROR_TOXIC": "content_filter",
}
"""OpenAI's finish reasons for those of both versions."""
FAILURES = ("ERROR", "TIMEOUT", "USER_CANCEL")
"""Finish reasons of aborted answers."""
_KINDS_V2: Mapping[str, TextKind] = {"thinking": "reasoning", "text": "text"}
_ROLES_V2: Mapping[str, str] = {"developer": "system"}


def read_v2(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a streamed event, by its type, or of a whole answer."""
    kind, place = value.get("type"), count_of(value.get("index")) or 0
    delta = object_of(value.get("delta"))
    message = object_of(delta.get("message"))
    if kind in ("content-start", "content-delta"):
        yield from _content_v2(object_of(message.get("content")), _tokens_v2(value.get("logprobs")))
    elif kind in ("tool-call-start", "tool-call-delta"):
        yield _call_v2(object_of(message.get("tool_calls")), place)
    elif kind == "tool-plan-delta":
        yield from _plan_v2(message)
    elif kind == "message-end":
        yield from _ending_v2(delta)
    elif kind is None and "finish_reason" in value:
        yield from _whole_v2(value)


def _whole_v2(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    message = object_of(value.get("message"))
    yield from _plan_v2(message)
    tokens = _tokens_v2(value.get("logprobs"))
    for block in list_of(message.get("content")):
        for event in _content_v2(object_of(block), ()):
            yield TextDelta(0, event.text, tokens if event.kind == "text" else (), event.kind)
            tokens = () if event.kind == "text" else tokens
    for place, call in enumerate(list_of(message.get("tool_calls"))):
        yield _call_v2(object_of(call), place)
    yield from _ending_v2(value)


def _content_v2(block: Mapping[str, object], tokens: tuple[ChunkToken, ...]) -> Iterator[TextDelta]:
    for name, kind in _KINDS_V2.items():
        if text := text_of(block.get(name)):
            yield TextDelta(0, text, tokens, kind)


def _plan_v2(message: Mapping[str, object]) -> Iterator[TextDelta]:
    """The model's plan for its calls, as reasoning."""
    if plan := text_of(message.get("tool_plan")):
        yield TextDelta(0, plan, kind="reasoning")


def _call_v2(call: Mapping[str, object], place: int) -> ToolCallDelta:
    function = object_of(call.get("function"))
    name, arguments = text_of(function.get("name")) or None, text_of(function.get("arguments"))
    return ToolCallDelta(0, place, text_of(call.get("id")) or None, name, arguments)


def _tokens_v2(value: object) -> tuple[ChunkToken, ...]:
    """Pieces of text with logprobs; None for a piece of several tokens."""
    tokens = []
    for item in map(object_of, list_of(value) or [value]):
        logprobs = list_of(item.get("logprobs"))
        if logprobs:
            tokens.append(
                ChunkToken(text_of(item.get("text")), logprob_of(logprobs[0]) if len(logprobs) == 1 else None)
            )
    return tuple(tokens)


def _ending_v2(members: Mapping[str, object]) -> Iterator[AnswerEvent]:
    yield from usage_events(object_of(members.get("usage")))
    yield from finish_events(text_of(members.get("finish_reason")), text_of(members.get("error")))


def usage_events(usage: Mapping[str, object]) -> Iterator[TokenUsage]:
    """Token counts of an answer: all tokens if reported, otherwise the billed ones."""
    counts = object_of(usage.get("tokens")) or object_of(usage.get("billed_units"))
    if counts:
        prompt, completion = (_whole_number(counts.get(name)) for name in ("input_tokens", "output_tokens"))
        yield TokenUsage(prompt, completion, _whole_number(usage.get("cached_tokens")))


def _whole_number(value: object) -> int | None:
    """A count; Cohere's specification defines counts as floating-point numbers."""
    return count_of(int(value)) if isinstance(value, float) and value.is_integer() else count_of(value)


def finish_events(reason: str, error: str = "") -> Iterator[ChoiceFinished | AnswerFailed]:
    """Final event for one of Cohere's finish reasons; none if it is empty."""
    if reason in FAILURES:
        yield AnswerFailed(error or f"the answer ended with {reason}", reason)
    elif reason:
        yield ChoiceFinished(0, REASONS.get(reason, reason))


def write_chat_v2(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Body of a version 2 chat. A `preamble` in the configuration (version 1) becomes the first system message.

    Raises `RequestError` if a tool must be called by name.
    """
    own = {name: value for name, value in parameters.items() if name != "preamble"}
    preamble = [{"role": "system", "content": parameters["preamble"]}] if parameters.get("preamble") else []
    messages = [{**write_message(turn), "role": _ROLES_V2.get(turn.role, turn.role)} for turn in chat.messages]
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
    """Cohere's response format: one type for JSON with or without a schema. name: member for the schema."""
    if response_format.get("type") != "json_schema":
        return response_format
    return {"type": "json_object", name: object_of(response_format.get("json_schema")).get("schema")}


_TYPES: Mapping[str, str] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
"""Python's names for the types of JSON Schema."""
_ROLES_V1: Mapping[str, str] = {"user": "USER", "assistant": "CHATBOT", "system": "SYSTEM", "developer": "SYSTEM"}
_SYSTEM = ("system", "developer")


def read_v1(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a streamed event, by its type, or of a whole answer."""
    kind = value.get("event_type")
    if kind == "text-generation":
        if text := text_of(value.get("text")):
            yield TextDelta(0, text)
    elif kind == "tool-calls-chunk":
        if plan := text_of(value.get("text")):
            yield TextDelta(0, plan, kind="reasoning")
    elif kind == "tool-calls-generation":  # complete; the chunks before repeat it in pieces
        yield from _calls_v1(value)
    elif kind == "stream-end":
        response = object_of(value.get("response"))
        yield from _ending_v1(response, text_of(value.get("finish_reason")))
    elif kind is None and "text" in value:
        if text := text_of(value["text"]):
            yield TextDelta(0, text)
        yield from _calls_v1(value)
        yield from _ending_v1(value, text_of(value.get("finish_reason")))


def _calls_v1(value: Mapping[str, object]) -> Iterator[ToolCallDelta]:
    """Calls of a version 1 answer, which have no ids."""
    for place, call in enumerate(map(object_of, list_of(value.get("tool_calls")))):
        arguments = json.dumps(call.get("parameters"), ensure_ascii=False)
        yield ToolCallDelta(0, place, name=text_of(call.get("name")), arguments=arguments)


def _ending_v1(response: Mapping[str, object], reason: str) -> Iterator[AnswerEvent]:
    yield from usage_events(object_of(response.get("meta")))
    calls = reason == "COMPLETE" and list_of(response.get("tool_calls"))
    yield from finish_events("TOOL_CALL" if calls else reason)


def write_chat_v1(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Body of a version 1 chat.

    System messages at the start become the `preamble`, unless the parameters have one. Raises `RequestError` for a
    conversation that ends with an assistant message.
    """
    turns = list(chat.messages)
    body: dict[str, object] = {"model": model, **parameters, "stream": chat.stream}
    if "preamble" not in parameters:
        system = []
        while turns and turns[0].role in _SYSTEM:
            system.append(turns.pop(0).content)
        if system:
            body["preamble"] = "\n\n".join(system)
    body |= _last_turns_v1(turns)
    if chat.tools:
        body["tools"] = [_write_tool_v1(object_of(tool.get("function"))) for tool in chat.tools]
    if chat.response_format is not None:
        body["response_format"] = write_response_format(chat.response_format, "schema")
    return body


def _last_turns_v1(turns: list[ChatMessage]) -> dict[str, object]:
    """Members with the message to answer, and the history before it."""
    end = len(turns)
    while end and turns[end - 1].role == "tool":
        end -= 1
    if end < len(turns):
        history: dict[str, object] = {"chat_history": _history_v1(turns[:end])} if end else {}
        return {"message": "", **history, "tool_results": _results_v1(turns[end:], turns)}
    if not turns or turns[-1].role != "user":
        last = turns[-1].role if turns else "system"
        raise RequestError(f"cohere's version 1 answers a user or a tool; the last message is from {last}")
    before = _history_v1(turns[:-1])
    return {"message": turns[-1].content, **({"chat_history": before} if before else {})}


def _history_v1(turns: Sequence[ChatMessage]) -> list[dict[str, object]]:
    history: list[dict[str, object]] = []
    for turn in turns:
        if turn.role == "tool":
            results = _results_v1([turn], turns)
            if history and history[-1]["role"] == "TOOL":
                results = [*list_of(history.pop()["tool_results"]), *results]
            history.append({"role": "TOOL", "tool_results": results})
        else:
            calls = {"tool_calls": [_write_call_v1(call) for call in turn.tool_calls]} if turn.tool_calls else {}
            history.append({"role": _ROLES_V1.get(turn.role, "USER"), "message": turn.content, **calls})
    return history


def _results_v1(answers: Sequence[ChatMessage], turns: Sequence[ChatMessage]) -> list[object]:
    """Tool results, each with its complete call; this version has no call ids."""
    calls = {call.id: call for turn in turns for call in turn.tool_calls}
    results: list[object] = []
    for answer in answers:
        call = calls.get(answer.tool_call_id or "")
        if call is None:
            raise RequestError(f"a tool answers the call {answer.tool_call_id!r}, which no message before it makes")
        output = load(answer.content.encode("utf-8", "replace"))
        outputs = [output] if isinstance(output, dict) else [{"output": answer.content}]
        results.append({"call": _write_call_v1(call), "outputs": outputs})
    return results


def _write_call_v1(call: ToolCall) -> dict[str, object]:
    return {"name": call.name, "parameters": arguments_object(call.arguments)}


def _write_tool_v1(function: Mapping[str, object]) -> dict[str, object]:
    """A tool with a list of parameters; JSON Schema beyond type and description is lost."""
    schema = object_of(function.get("parameters"))
    required = list_of(schema.get("required"))
    definitions = {
        name: {
            **({"description": member["description"]} if "description" in member else {}),
            "type": _TYPES.get(text_of(member.get("type")), "str"),
            "required": name in required,
        }
        for name, value in object_of(schema.get("properties")).items()
        for member in [object_of(value)]
    }
    described = text_of(function.get("description"))
    return {"name": function.get("name"), "description": described, "parameter_definitions": definitions}


def write_thinking_v2(thinking: Thinking, _chat: ChatRequest, _body: Mapping[str, object]) -> dict[str, object]:
    """Member `thinking` of version 2: a switch and a token budget."""
    if thinking.enabled is None:
        return {}
    if not thinking.enabled:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"} | ({} if thinking.budget is None else {"token_budget": thinking.budget})}
