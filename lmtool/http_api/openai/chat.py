"""Messages of chat completions, and the turns of a conversation that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lmtool.http_api.decoding import Fields, wrong
from lmtool.http_api.requests import MAX_MESSAGES
from lmtool.types import ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextPart(msgspec.Struct):
    """A part of a message's text."""

    type: Annotated[Literal["text"], Meta(description="text; images and sounds cannot be read here")]
    text: str


TEXT = "a text, or parts of type text; images and sounds cannot be read here"


class FunctionCall(Fields):
    """The tool that is called, and with what."""

    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: Annotated[str, Meta(description="the text of a JSON object")] | None = None


class MessageToolCall(Fields):
    """One call in an assistant's message."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None
    index: Any = None

    def turn(self) -> ToolCall:
        """The call as a turn of a conversation has it."""
        return ToolCall(self.id or "", self.function.name, self.function.arguments or "{}")


class Message(Fields):
    """One message. What stands behind `tool_calls` comes with answers of ours or of others; no template reads it."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Meta(description="one of system, developer, user, assistant, tool"),
    ]
    content: Annotated[str | list[str | TextPart], Meta(description=TEXT)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_MESSAGES)] | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    function_call: Any = None
    prefix: Any = None


def turns(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """The turns of a conversation. Raises `ApiError`."""
    return tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages))


def _turn(message: Message, place: str) -> ChatMessage:
    calls = tuple(call.turn() for call in message.tool_calls or ())
    if message.content is None and not calls:
        raise wrong(f"{place}.content", None, TEXT)
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role, content_text(message.content), calls, message.tool_call_id, message.name)


def content_text(content: str | Sequence[Any] | None) -> str:
    """The text of a message's content: a text, parts with a text each, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else part.text for part in content)


def text_of(content: object, kinds: Sequence[str], param: str) -> str:
    """The text of JSON content that is a text or parts of these kinds. Raises `ApiError` for pictures and sounds."""
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in kinds else part
        if not isinstance(text, str):
            expected = f"a text, or parts of type {kinds[0]}; images and sounds cannot be read here"
            raise wrong(param, content, expected)
        texts.append(text)
    return "".join(texts)
