"""Messages of chat completions, and the turns of a conversation that they are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from lmtool.core.types import ChatMessage, ChatPrompt, ToolCall
from lmtool.protocol.http.decoding import Part, refuse, wrong
from lmtool.protocol.http.requests import MAX_MESSAGES, TokenIds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ContentPart(Part):
    """A part of a message's content: what is said, that nothing is, or what was thought."""

    type: Annotated[
        Literal["text", "refusal", "thinking", "redacted_thinking", "reasoning"],
        Meta(description="text; images and sounds cannot be read here"),
    ]
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None

    @property
    def answer_text(self) -> str:
        """What it adds to the message's text."""
        return self.text or self.refusal or "" if self.type in {"text", "refusal"} else ""

    @property
    def reasoning_text(self) -> object:
        """What it adds to the thought, a text if it is anything; a redacted one cannot be read."""
        return {"thinking": self.thinking, "reasoning": self.text}.get(self.type)


TEXT = "a text, or parts of type text; images and sounds cannot be read here"


class FunctionCall(Part):
    """The tool that is called, and with what."""

    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: Annotated[str | dict[str, Any] | list[Any], Meta(description="the text of a JSON object")] | None = None

    @property
    def text(self) -> str:
        """The arguments as a text, as clients should send them."""
        given = self.arguments or "{}"
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


class MessageToolCall(Part):
    """One call in an assistant's message."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None

    def turn(self) -> ToolCall:
        """The call as a turn of a conversation has it."""
        return ToolCall(self.id or "", self.function.name, self.function.text)


class Message(Part):
    """One message. Answers of ours or of others, sent back, have more members, which no template reads."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        Meta(description="one of system, developer, user, assistant, tool"),
    ]
    content: Annotated[str | list[str | ContentPart], Meta(description=TEXT)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_MESSAGES)] | None = None
    function_call: FunctionCall | None = None
    """OpenAI's older form of a call."""
    refusal: str | None = None
    """What an assistant said in place of an answer."""
    prefix: bool | None = None
    """Whether the answer goes on behind this message, the last one: `continue_final_message` in other words."""
    reasoning_content: Any = None
    reasoning: Any = None
    """What an assistant thought before it said that, a text in one of these; other forms are not read."""
    token_ids: TokenIds | None = None
    """The exact ids of the turn, such as those of an answer of ours: they stand in place of its text and calls."""


def turns(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """The turns of a conversation. Raises `ApiError`."""
    return tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages))


def chat_prompt(messages: Sequence[Message], *, continued: bool, generation_prompt: bool | None) -> ChatPrompt:
    """The prompt of a conversation. Raises `ApiError`.

    continued: whether the answer goes on behind the last message. generation_prompt: whether the template writes what
    an answer begins with; None: unless it is continued.
    """
    conversation = turns(messages)
    if not continued and not messages[-1].prefix:
        kwargs = {} if generation_prompt is not False else {"add_generation_prompt": False}
        return ChatPrompt(conversation, chat_template_kwargs=kwargs)
    last = conversation[-1]
    if continued and generation_prompt:
        refuse(
            "add_generation_prompt",
            "add_generation_prompt and continue_final_message contradict each other; send one of them",
        )
    if last.role != "assistant" or last.tool_calls:
        refuse("continue_final_message", "continue_final_message needs a last message of role assistant, without calls")
    if last.tokens is not None:
        refuse(f"messages[{len(messages) - 1}].token_ids", "ids cannot be gone on with here: send prompt_token_ids")
    return ChatPrompt(conversation[:-1], prefill=last.content)


def _turn(message: Message, place: str) -> ChatMessage:
    calls = tuple(call.turn() for call in message.tool_calls or ())
    if message.function_call is not None:
        calls += (ToolCall("", message.function_call.name, message.function_call.text),)
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    if message.content is None and message.token_ids is None and role not in {"assistant", "tool"}:
        raise wrong(f"{place}.content", None, TEXT)
    for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if isinstance(part, ContentPart) and part.type == "text" and part.text is None:
            refuse(f"{place}.content[{at}].text", f"{place}.content[{at}].text is missing; expected a text")
    text = content_text(message.content) or message.refusal or ""
    turn = ChatMessage(role, text, calls, message.tool_call_id, message.name, reasoning=_thought(message))
    if message.token_ids is None:
        return turn
    return replace(turn, tool_calls=(), tokens=tuple(message.token_ids))


def content_text(content: str | Sequence[str | ContentPart] | None) -> str:
    """The text of a message's content: a text, parts with a text each, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else part.answer_text for part in content)


def _thought(message: Message) -> str:
    """What an assistant's turn thought, as far as it is a text."""
    if message.role != "assistant":
        return ""
    texts = [message.reasoning_content, message.reasoning]
    if isinstance(message.content, list):
        texts += [part.reasoning_text for part in message.content if isinstance(part, ContentPart)]
    return next((text for text in texts if isinstance(text, str) and text), "")


def text_of(content: object, kinds: Sequence[str], param: str) -> str:
    """The text of JSON content that is a text or parts of these kinds. Raises `ApiError` for pictures and sounds."""
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        text = _said(part, kinds) if isinstance(part, dict) else part
        if not isinstance(text, str):
            expected = f"a text, or parts of type {kinds[0]}; images and sounds cannot be read here"
            raise wrong(param, content, expected)
        texts.append(text)
    return "".join(texts)


def _said(part: Mapping[str, Any], kinds: Sequence[str]) -> object:
    """The text of a part of one of these kinds, or of a refusal."""
    if part.get("type") == "refusal":
        return part.get("refusal")
    return part.get("text") if part.get("type") in kinds else None
