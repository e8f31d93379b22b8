"""Items of the Responses API: read into turns of a conversation, and written for answers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from lmtool.core.reasoning import SignedThought, ThoughtSignature
from lmtool.core.signed_message import SignedMessage, signed_thoughts
from lmtool.core.types import ChatMessage, ToolCall
from lmtool.protocol.http.decoding import Part
from lmtool.protocol.http.openai.chat import text_of
from lmtool.protocol.http.requests import TokenIds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXTS = ("input_text", "output_text", "text")
Content = str | list[Any]


class _Item(Part, tag_field="type"):
    """An item of a conversation."""

    id: str | None = None
    token_ids: TokenIds | None = None
    """The exact ids of the assistant's turn that begins with this item, in place of its text and calls."""


class MessageItem(_Item, tag="message", kw_only=True):
    """What somebody says."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(_Item, tag="function_call", kw_only=True):
    """A call of a tool."""

    call_id: str
    name: Annotated[str, Meta(min_length=1, description="the name of a tool")]
    arguments: str | None = None


class FunctionCallOutputItem(_Item, tag="function_call_output", kw_only=True):
    """What a tool answered."""

    output: Content | None = None
    call_id: str | None = None


class ReasoningItem(_Item, tag="reasoning"):
    """What an assistant thought before the item behind it; an encrypted thought cannot be read."""

    content: Any = None
    summary: Any = None
    encrypted_content: Any = None
    """What `encrypted` makes of a signature; others are not ours, and say nothing here."""

    @property
    def signed(self) -> SignedThought | None:
        """The thought as the API that has signed it wants to have it back."""
        given = self.encrypted_content if isinstance(self.encrypted_content, str) else ""
        kind, _, value = given.partition(":")
        if kind not in _SIGNED or not value:
            return None
        is_redacted = kind == _REDACTED
        return SignedThought("" if is_redacted else self.text, ThoughtSignature(value, is_redacted))

    @property
    def text(self) -> str:
        """The thought, or else what it comes to, as far as that is texts."""
        return _texts(self.content) or _texts(self.summary)


class ItemReference(_Item, tag="item_reference"):
    """An item of a stored response, by its id, which the server puts in its place before its turns are made."""


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference


class TurnThought(NamedTuple):
    """What an assistant thought before its turn, in one item or several."""

    text: str = ""
    signed: tuple[SignedThought, ...] = ()

    def behind(self, item: ReasoningItem) -> TurnThought:
        """This and what another item has."""
        signed = item.signed
        return TurnThought(self.text + item.text, self.signed if signed is None else (*self.signed, signed))


_PLAIN, _REDACTED = "thinking", "redacted_thinking"
_SIGNED = frozenset({_PLAIN, _REDACTED})


def encrypted(signature: ThoughtSignature) -> str:
    """The `encrypted_content` of an item: a signature, which the client sends back with the thought."""
    return f"{_REDACTED if signature.is_redacted else _PLAIN}:{signature.value}"


def turns_of(items: Sequence[Item]) -> tuple[ChatMessage, ...]:
    """The turns that these items make; calls belong to the assistant's turn before them. Raises `ApiError`."""
    turns: list[ChatMessage] = []
    thought = TurnThought()
    for at, item in enumerate(items):
        before, thought = thought, TurnThought()
        if isinstance(item, ReasoningItem):
            thought = before.behind(item)
            if item.token_ids is not None:  # of an answer that is nothing else
                turns.append(ChatMessage("assistant", "", tokens=_exact(item)))
        elif isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            text = text_of(item.content, _TEXTS, f"input[{at}].content")
            own = before if role == "assistant" else TurnThought()
            turn = ChatMessage(role, text, tokens=_exact(item), reasoning=own.text)
            turns.append(turn if turn.tokens is not None else SignedMessage.of(turn, own.signed))
        elif isinstance(item, FunctionCallItem):
            call = ToolCall(item.call_id, item.name, item.arguments or "{}")
            if item.token_ids is not None:
                turns.append(ChatMessage("assistant", "", tokens=_exact(item)))
            elif turns and turns[-1].tokens is not None:
                continue  # the ids of its turn have it
            elif turns and turns[-1].role == "assistant":
                said = turns[-1]
                turn = replace(said, tool_calls=(*said.tool_calls, call), reasoning=said.reasoning + before.text)
                turns[-1] = SignedMessage.of(turn, (*signed_thoughts(said), *before.signed))
            else:
                turn = ChatMessage("assistant", "", (call,), reasoning=before.text)
                turns.append(SignedMessage.of(turn, before.signed))
        elif isinstance(item, FunctionCallOutputItem):
            text = text_of(item.output or "", _TEXTS, f"input[{at}].output")
            turns.append(ChatMessage("tool", text, tool_call_id=item.call_id))
    return tuple(turns)


def _texts(parts: object) -> str:
    """The texts of parts that have one each."""
    found = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return "\n".join(text for text in found if isinstance(text, str))


def _exact(item: _Item) -> tuple[int, ...] | None:
    return None if item.token_ids is None else tuple(item.token_ids)


def part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message(number: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """An assistant's message."""
    return {"id": number, "type": "message", "status": status, "role": "assistant", "content": content}


ThoughtKind: TypeAlias = Literal["reasoning_text", "summary_text"]
"""Which part of an item has a thought: its content, or its summary."""


def reasoning(number: str, status: str, text: str, kind: ThoughtKind) -> dict[str, Any]:
    """What the model thought, so far."""
    item = {"id": number, "type": "reasoning", "status": status, "summary": [], "content": []}
    return item | {_MEMBERS[kind]: [reasoning_part(text, kind)]} if text else item


_MEMBERS: Mapping[ThoughtKind, str] = {"reasoning_text": "content", "summary_text": "summary"}


def reasoning_part(text: str, kind: ThoughtKind) -> dict[str, Any]:
    """The text of a thought."""
    return {"type": kind, "text": text}


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
    """A new id: `resp`, `msg`, `rs` or `fc`, and a number."""
    return f"{kind}_{uuid.uuid4().hex}"
