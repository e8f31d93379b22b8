"""Cohere's chat, version 1: the last message apart from a history, answers whole and as JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.core.tool_arguments import arguments_object
from lmtool.protocol.providers.answer_events import TextDelta, ToolCallDelta
from lmtool.protocol.providers.cohere_v2 import finish_events, usage_events, write_response_format
from lmtool.protocol.providers.json_values import list_of, load, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.core.types import ChatMessage, ToolCall
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.protocol.providers.chat_request import ChatRequest

_TYPES: Mapping[str, str] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
"""Python's names for the types of JSON Schema."""
_ROLES: Mapping[str, str] = {"user": "USER", "assistant": "CHATBOT", "system": "SYSTEM", "developer": "SYSTEM"}
_SYSTEM = ("system", "developer")


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a streamed event, by its type, or of a whole answer."""
    kind = value.get("event_type")
    if kind == "text-generation":
        if text := text_of(value.get("text")):
            yield TextDelta(0, text)
    elif kind == "tool-calls-chunk":
        if plan := text_of(value.get("text")):
            yield TextDelta(0, plan, kind="reasoning")
    elif kind == "tool-calls-generation":  # all of them; the chunks before bring the same piece by piece
        yield from _calls(value)
    elif kind == "stream-end":
        response = object_of(value.get("response"))
        yield from _ending(response, text_of(value.get("finish_reason")))
    elif kind is None and "text" in value:
        if text := text_of(value["text"]):
            yield TextDelta(0, text)
        yield from _calls(value)
        yield from _ending(value, text_of(value.get("finish_reason")))


def _calls(value: Mapping[str, object]) -> Iterator[ToolCallDelta]:
    """Calls, which have no ids."""
    for place, call in enumerate(map(object_of, list_of(value.get("tool_calls")))):
        arguments = json.dumps(call.get("parameters"), ensure_ascii=False)
        yield ToolCallDelta(0, place, name=text_of(call.get("name")), arguments=arguments)


def _ending(response: Mapping[str, object], reason: str) -> Iterator[AnswerEvent]:
    yield from usage_events(object_of(response.get("meta")))
    calls = reason == "COMPLETE" and list_of(response.get("tool_calls"))
    yield from finish_events("TOOL_CALL" if calls else reason)


def write_chat(chat: ChatRequest, model: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """The body of a chat.

    System turns at the start become the `preamble`, unless the parameters have one. Raises `RequestError` for a
    conversation that ends with an assistant's turn.
    """
    turns = list(chat.messages)
    body: dict[str, object] = {"model": model, **parameters, "stream": chat.stream}
    if "preamble" not in parameters:
        system = []
        while turns and turns[0].role in _SYSTEM:
            system.append(turns.pop(0).content)
        if system:
            body["preamble"] = "\n\n".join(system)
    body |= _last_turns(turns)
    if chat.tools:
        body["tools"] = [_write_tool(object_of(tool.get("function"))) for tool in chat.tools]
    if chat.response_format is not None:
        body["response_format"] = write_response_format(chat.response_format, "schema")
    return body


def _last_turns(turns: list[ChatMessage]) -> dict[str, object]:
    """What the model answers, and the turns before that."""
    end = len(turns)
    while end and turns[end - 1].role == "tool":
        end -= 1
    if end < len(turns):
        history: dict[str, object] = {"chat_history": _history(turns[:end])} if end else {}
        return {"message": "", **history, "tool_results": _results(turns[end:], turns)}
    if not turns or turns[-1].role != "user":
        last = turns[-1].role if turns else "system"
        raise RequestError(f"cohere's version 1 answers a user or a tool; the last message is from {last}")
    before = _history(turns[:-1])
    return {"message": turns[-1].content, **({"chat_history": before} if before else {})}


def _history(turns: Sequence[ChatMessage]) -> list[dict[str, object]]:
    history: list[dict[str, object]] = []
    for turn in turns:
        if turn.role == "tool":
            results = _results([turn], turns)
            if history and history[-1]["role"] == "TOOL":
                results = [*list_of(history.pop()["tool_results"]), *results]
            history.append({"role": "TOOL", "tool_results": results})
        else:
            calls = {"tool_calls": [_write_call(call) for call in turn.tool_calls]} if turn.tool_calls else {}
            history.append({"role": _ROLES.get(turn.role, "USER"), "message": turn.content, **calls})
    return history


def _results(answers: Sequence[ChatMessage], turns: Sequence[ChatMessage]) -> list[object]:
    """Answers of tools, each with its call, which this API names whole instead of by an id."""
    calls = {call.id: call for turn in turns for call in turn.tool_calls}
    results: list[object] = []
    for answer in answers:
        call = calls.get(answer.tool_call_id or "")
        if call is None:
            raise RequestError(f"a tool answers the call {answer.tool_call_id!r}, which no message before it makes")
        output = load(answer.content.encode("utf-8", "replace"))
        outputs = [output] if isinstance(output, dict) else [{"output": answer.content}]
        results.append({"call": _write_call(call), "outputs": outputs})
    return results


def _write_call(call: ToolCall) -> dict[str, object]:
    return {"name": call.name, "parameters": arguments_object(call.arguments)}


def _write_tool(function: Mapping[str, object]) -> dict[str, object]:
    """A tool whose parameters are named one by one; what JSON Schema says beyond type and description is lost."""
    schema = object_of(function.get("parameters"))
    required = list_of(schema.get("required"))
    definitions = {
        name: {
            **({"description": one["description"]} if "description" in one else {}),
            "type": _TYPES.get(text_of(one.get("type")), "str"),
            "required": name in required,
        }
        for name, one in ((name, object_of(member)) for name, member in object_of(schema.get("properties")).items())
    }
    described = text_of(function.get("description"))
    return {"name": function.get("name"), "description": described, "parameter_definitions": definitions}
