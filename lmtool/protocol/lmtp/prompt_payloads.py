"""The prompt of a client's request: read with every member checked by name, and written."""

from __future__ import annotations

from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from lmtool.core.errors import RequestError
from lmtool.core.types import BufferSlice, ChatMessage, ChatPrompt, MixedPrompt
from lmtool.protocol.lmtp import request_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import Prompt

_WITH_MESSAGES = ("tools", "chat_template_kwargs", "prefill")


def read_prompt(members: Mapping[str, bytes]) -> Prompt:
    """The prompt of a request with these members. Raises `RequestError`."""
    if "prompt" in members and "messages" in members:
        raise RequestError("the request has both prompt and messages; expected one of them")
    if "messages" in members:
        return ChatPrompt(
            _turns(members["messages"]),
            request_fields.TOOLS.read_optional("tools", members) or (),
            request_fields.TEMPLATE_KWARGS.read_optional("chat_template_kwargs", members) or {},
            request_fields.PREFILL.read_optional("prefill", members) or "",
        )
    if extra := next((name for name in _WITH_MESSAGES if name in members), None):
        raise RequestError(f"{extra} needs messages: it is a matter of the chat template")
    if "prompt" not in members:
        raise RequestError(f"prompt is missing; expected {request_fields.PROMPT.expected}")
    return _mixed(members["prompt"]) or request_fields.PROMPT.read("prompt", members["prompt"])


def _turns(text: bytes) -> tuple[ChatMessage, ...]:
    turns = request_fields.MESSAGES.read("messages", text)
    for at, turn in enumerate(turns):
        if turn.tokens is not None:
            request_fields.PROMPT.read(f"messages[{at}].tokens", msgspec.json.encode(turn.tokens))
    return turns


def _mixed(text: bytes) -> MixedPrompt | None:
    """The prompt if it is an array with a text or a buffer; None for ids alone, and for a text."""
    if not text.startswith(b"[") or b'"' not in text:
        return None
    parts: list[str | tuple[int, ...] | BufferSlice] = []
    for is_ids, entries in groupby(request_fields.MIXED.read("prompt", text), key=lambda entry: isinstance(entry, int)):
        if is_ids:
            parts.append(tuple(entry for entry in entries if isinstance(entry, int)))
            continue
        for entry in entries:
            if isinstance(entry, request_fields.BufferEntry):
                parts.append(BufferSlice(entry.buffer, entry.length))
            elif isinstance(entry, str):
                parts.append(entry)
    return MixedPrompt(tuple(parts))


def ids_and_texts(entries: Sequence[str | int]) -> tuple[str | tuple[int, ...], ...]:
    """Entries of an array, ids beside each other as one part."""
    parts: list[str | tuple[int, ...]] = []
    for is_text, group in groupby(entries, key=lambda entry: isinstance(entry, str)):
        if is_text:
            parts += [entry for entry in group if isinstance(entry, str)]
        else:
            parts.append(tuple(entry for entry in group if isinstance(entry, int)))
    return tuple(parts)


def is_text(prompt: Prompt) -> bool:
    """True if a request with this prompt is in text mode unless it says otherwise (TXT-4)."""
    if isinstance(prompt, MixedPrompt):
        return any(isinstance(part, str) for part in prompt.parts)
    return not isinstance(prompt, tuple)


def entries_of(part: str | tuple[int, ...] | BufferSlice) -> Sequence[object]:
    """The entries of an array that a part is written as."""
    if isinstance(part, BufferSlice):
        length = {} if part.length is None else {"length": part.length}
        return [{"buffer": part.buffer, **length}]
    return (part,) if isinstance(part, str) else part


def write_prompt(prompt: Prompt) -> dict[str, object]:
    """The members of a request that say its prompt."""
    if isinstance(prompt, MixedPrompt):
        return {"prompt": [entry for part in prompt.parts for entry in entries_of(part)]}
    if not isinstance(prompt, ChatPrompt):
        return {"prompt": prompt}
    return {"messages": [_turn(turn) for turn in prompt.messages]} | {
        name: value for name in _WITH_MESSAGES if (value := getattr(prompt, name))
    }


def _turn(message: ChatMessage) -> dict[str, object]:
    """A turn as it is written: `reasoning` where it has any."""
    turn = {name: getattr(message, name) for name in _TURN}
    return turn | {"reasoning": message.reasoning} if message.reasoning else turn


_TURN = tuple(field.name for field in fields(ChatMessage) if field.name != "reasoning")
