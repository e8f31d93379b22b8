"""Messages as chat completions have them, read into turns of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.http_api.members import Members
from lmtool.types import ROLES, ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_MESSAGES = 10_000
_SAID_ELSEWHERE = ("refusal", "annotations", "audio", "reasoning", "reasoning_content", "function_call", "prefix")
"""What clients send back of an answer of ours or of others', and no template here reads."""


def messages(members: Members) -> tuple[ChatMessage, ...]:
    """The messages of a request. Raises `ApiError` that names the one to blame."""
    given = members.take("messages")
    if not isinstance(given, list) or not given or len(given) > MOST_MESSAGES:
        raise members.wrong("messages", given, "a list of messages, each with role and content")
    return tuple(_message(members, index, one) for index, one in enumerate(given))


def _message(members: Members, index: int, given: object) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise members.wrong(where, given, "an object with role and content")
    own = Members(given, f"{where}.")
    role, name, answers = own.text("role") or "", own.text("name"), own.text("tool_call_id")
    if role not in ROLES:
        raise own.wrong("role", role, f"one of {', '.join(ROLES)}")
    calls = tuple(_call(call) for call in own.objects("tool_calls", MOST_MESSAGES))
    content = _content(own, optional=bool(calls))
    for ignored in _SAID_ELSEWHERE:
        own.take(ignored)
    own.end()
    return ChatMessage("system" if role == "developer" else role, content, calls, answers, name)


def _content(own: Members, *, optional: bool) -> str:
    content = own.take("content")
    if content is None and optional:
        return ""
    if isinstance(content, list):
        content = joined(own, content, ("text",))
    if not isinstance(content, str):
        raise own.wrong("content", content, "a text, or a list of text parts")
    return content


def joined(own: Members, parts: Sequence[object], kinds: Sequence[str], member: str = "content") -> str:
    """The text of a list of parts of these kinds. Raises `ApiError` for others: pictures and sounds."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in kinds else part
        if not isinstance(text, str):
            raise own.wrong(member, parts, f"text, or parts of type {kinds[0]}; images and sounds cannot be read here")
        texts.append(text)
    return "".join(texts)


def _call(call: Members) -> ToolCall:
    kind, number, function = call.text("type"), call.text("id"), call.inner("function")
    call.take("index")
    if kind not in {None, "function"} or function is None:
        raise call.wrong("type", kind, "function, with an object of that name")
    name, arguments = function.text("name"), function.take("arguments")
    if not name:
        raise function.wrong("name", name, "the name of a tool")
    if arguments is not None and not isinstance(arguments, str):
        raise function.wrong("arguments", arguments, "the text of a JSON object")
    function.end()
    call.end()
    return ToolCall(number or "", name, arguments or "{}")
