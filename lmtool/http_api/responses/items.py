"""Items of the Responses API: read into turns of a conversation, and written for answers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmtool.http_api.conversation import MOST_MESSAGES, joined
from lmtool.http_api.members import Members
from lmtool.types import ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXTS = ("input_text", "output_text", "text")


def turns_of(members: Members, items: Sequence[dict[str, Any]]) -> tuple[ChatMessage, ...]:
    """The turns that these items make; calls belong to the assistant's turn before them. Raises `ApiError`."""
    if len(items) > MOST_MESSAGES:
        raise members.wrong("input", items, f"at most {MOST_MESSAGES} items")
    turns: list[ChatMessage] = []
    for at, item in enumerate(items):
        own = Members(item, f"input[{at}].")
        kind = own.text("type") or "message"
        own.take("id"), own.take("status")
        if kind == "reasoning":
            continue  # what another model thought
        turn = _turn(own, kind)
        if turn.tool_calls and turns and turns[-1].role == "assistant":
            turns[-1] = replace(turns[-1], tool_calls=turns[-1].tool_calls + turn.tool_calls)
        else:
            turns.append(turn)
        own.end()
    return tuple(turns)


def _turn(own: Members, kind: str) -> ChatMessage:
    if kind == "message":
        role = own.text("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise own.wrong("role", role, "user, assistant, system or developer")
        own.take("phase")
        return ChatMessage("system" if role == "developer" else role, _text(own, "content"))
    if kind == "function_call":
        call_id, name, arguments = own.text("call_id"), own.text("name"), own.text("arguments")
        if not name or call_id is None:
            raise own.wrong("name", name, "the name of a tool, beside call_id and arguments")
        return ChatMessage("assistant", "", (ToolCall(call_id, name, arguments or "{}"),))
    if kind == "function_call_output":
        return ChatMessage("tool", _text(own, "output"), tool_call_id=own.text("call_id"))
    raise own.wrong("type", kind, "message, function_call or function_call_output")


def _text(own: Members, member: str) -> str:
    value = own.take(member)
    if isinstance(value, list):
        return joined(own, value, _TEXTS, member)
    if not isinstance(value, str):
        raise own.wrong(member, value, "a text, or a list of text parts")
    return value


def part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message(number: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message."""
    return {"id": number, "type": "message", "status": status, "role": "assistant", "content": content}


def function_call(number: str, status: str, call: ToolCall) -> dict[str, Any]:
    """A call of a tool."""
    return {
        "id": number,
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def fresh(kind: str) -> str:
    """A new id: `resp`, `msg` or `fc`, and a number."""
    return f"{kind}_{uuid.uuid4().hex}"
