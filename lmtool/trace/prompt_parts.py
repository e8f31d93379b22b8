"""What a request has a model read, part by part as chat templates write it: tools, system, messages."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lmtool.protocol.providers.json_values import list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.trace.stream_events import RequestStarted

CHUNK = 64
"""Ids of a prompt of ids that are one part."""
_SYSTEM = ("system", "developer")
_SETTINGS = (
    *("chat_template", "chat_template_kwargs", "enable_thinking", "thinking", "reasoning", "reasoning_effort"),
    *("tool_choice", "response_format", "text", "output_config", "documents", "continue_final_message"),
    "add_generation_prompt",
)
"""Members of a request by which templates, or servers in their place, change what they write around its messages."""
_VOLATILE = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status", "signature"})
"""Members of messages that templates do not write."""

Text: TypeAlias = "str | tuple[int, ...]"


class PromptPart(NamedTuple):
    """A part of a prompt."""

    name: str
    """For people: `tool get_weather`, `system`, `message 3 (user)`; `tokens` for ids."""
    text: Text
    """What stands for it in a comparison: characters, or ids."""


class PromptContent(NamedTuple):
    """All of a request's prompt that the trace tells."""

    parts: tuple[PromptPart, ...]
    scope: tuple[str, str]
    """Model and cache salt: prompts of another scope share nothing."""
    settings: Mapping[str, object]
    """What else changes the text that a model reads."""
    missing: str = ""
    """Why not all of it is known; empty where it is."""

    @property
    def unit(self) -> str:
        """`tokens` or `characters`."""
        return "tokens" if self.parts and self.parts[0].name == "tokens" else "characters"

    @property
    def length(self) -> int:
        """In that unit."""
        return sum(len(part.text) for part in self.parts)


def prompt_content(started: RequestStarted) -> PromptContent:
    """The prompt of a request. Its payload must hold no references to large values."""
    payload = started.payload
    scope = (started.model or "", text_of(payload.get("cache_salt")))
    settings = {name: payload[name] for name in _SETTINGS if payload.get(name) is not None}
    if not isinstance(settings.get("text"), dict):  # of LMTP it only asks for texts beside ids
        settings.pop("text", None)
    if any(isinstance(value, dict) and "$redacted" in value for value in payload.values()):
        return PromptContent((), scope, settings, "it was left out of the trace")
    kept = payload.get("previous_response_id") or payload.get("conversation")
    missing = "the server keeps its beginning (previous_response_id)" if kept else ""
    return PromptContent(tuple(_parts(payload)), scope, settings, missing)


def prompt_text(started: RequestStarted, text_of_id: Callable[[int], str | None]) -> str:
    """The prompt for people, and what a SCORE scores after it; empty where the trace has none."""
    if started.nodes is not None:
        return started.nodes.prompt_end()
    content, scored = prompt_content(started), started.payload.get("scored")
    texts = [part.text if isinstance(part.text, str) else _spelled(part.text, text_of_id) for part in content.parts]
    if scored is not None and not content.missing:
        texts.append(_spelled(scored, text_of_id) if isinstance(scored, list) else str(scored))
    text = ("" if content.unit == "tokens" else "\n").join(texts)
    return f"({content.missing}) {text}".rstrip() if content.missing else text


def _spelled(ids: Iterable[int], text_of_id: Callable[[int], str | None]) -> str:
    return "".join(text if (text := text_of_id(one)) is not None else f"⟨#{one}⟩" for one in ids)


def _parts(payload: Mapping[str, object]) -> Iterator[PromptPart]:
    prompt = payload.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        for start in range(0, len(prompt), CHUNK):
            yield PromptPart("tokens", tuple(prompt[start : start + CHUNK]))
        return
    if prompt is not None:
        yield PromptPart("prompt", prompt if isinstance(prompt, str) else _json(prompt))
        return
    for tool in (*list_of(payload.get("tools")), *list_of(payload.get("functions"))):
        yield _tool(object_of(tool))
    for name in ("system", "instructions", "preamble"):
        if payload.get(name):
            yield PromptPart("system", _content(payload[name]))
    yield from _messages(payload)


def _tool(tool: Mapping[str, object]) -> PromptPart:
    """A tool as templates write it, whichever API's form it has; one of a server's own as it is."""
    members = object_of(tool.get("function", tool))
    name, parameters = text_of(members.get("name")), members.get("parameters", members.get("input_schema"))
    if parameters is None:
        return PromptPart(f"tool {name or text_of(tool.get('type'))}".rstrip(), _json(_stable(tool)))
    written = {"name": name, "description": members.get("description"), "parameters": parameters}
    return PromptPart(f"tool {name}", _json(written))


def _messages(payload: Mapping[str, object]) -> Iterator[PromptPart]:
    found = next((payload[name] for name in ("messages", "input", "message") if payload.get(name) is not None), None)
    messages = found if isinstance(found, list) else [] if found is None else [{"role": "user", "content": found}]
    number = 0
    for place, message in enumerate(messages):
        members = object_of(message)
        role = text_of(members.get("role")) or text_of(members.get("type")).replace("_", " ")
        if not place and role in _SYSTEM:
            yield PromptPart("system", _message(members))
            continue
        number += 1  # alike in APIs that have the system text beside the messages
        yield PromptPart(f"message {number} ({role or '?'})", f"{role}: {_message(members)}")


def _message(message: Mapping[str, object]) -> str:
    """A message as text: its content first, so that what differs is told in the user's own words."""
    rest = {name: value for name, value in message.items() if name not in {"role", "content", "type"} and value}
    more = _json(_stable(rest)) if _stable(rest) else ""
    return "\n".join(filter(None, (_content(message.get("content")), more)))


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in list_of(content):
        members = object_of(part)
        text = members.get("text")
        texts.append(text if isinstance(text, str) else _json(_stable(part)))
    return "\n".join(texts) if texts or not content else _json(_stable(content))


def _stable(value: object) -> object:
    """A value without what templates do not write; images and sounds by their hashes."""
    if isinstance(value, dict):
        return {name: _stable(one) for name, one in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [_stable(one) for one in value]
    if isinstance(value, str) and len(value) > 2000 and " " not in value[:2000]:
        return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
