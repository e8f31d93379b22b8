"""What a request to `/v1/messages` asks for, read from its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmtool.http_api import requests
from lmtool.http_api.conversation import MOST_MESSAGES, joined
from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import MOST_MEMBER_BYTES, Members
from lmtool.http_api.tools.definitions import MOST_TOOLS, ToolUse, read_tool, tool_use
from lmtool.types import ChatMessage, SamplingParams, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.http_api.tools.definitions import Tool

_MOST_STOPS = 64
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
"""Blocks of other models' answers that no template here reads."""


def read(body: Mapping[str, object], *, counting: bool = False) -> requests.Call:
    """Read a request; to count its tokens, none but the conversation is needed. Raises `ApiError`."""
    members = Members(body)
    model, system = members.text("model"), _system(members)
    turns = (*system, *_turns(members))
    limit = members.integer("max_tokens", 1, requests.MOST_TOKENS)
    if limit is None and not counting:
        raise members.wrong("max_tokens", None, "the most tokens of the answer")
    thinking = members.mapping("thinking")
    if thinking.get("type") not in {None, "disabled"}:
        raise members.wrong("thinking", thinking, "disabled: the models here do not think apart from their answer")
    sampling = SamplingParams(
        max_tokens=limit or 1,
        temperature=members.number("temperature", 0, 1, 1.0),
        top_k=members.integer("top_k", 0, requests.MOST_TOKENS) or 0,
        top_p=members.number("top_p", 0, 1, 1.0),
        stop=members.texts("stop_sequences", _MOST_STOPS),
        top_logprobs=0,
    )
    use = _tools(members)
    prefill = turns[-1].content if turns[-1].role == "assistant" and not turns[-1].tool_calls else None
    call = requests.Call(
        model, (turns if prefill is None else turns[:-1],), sampling, stream=members.flag("stream"), prefill=prefill
    )
    members.take("container")
    members.end()
    return replace(call, **requests.held_by_tools(call, use))


def _system(members: Members) -> tuple[ChatMessage, ...]:
    given = members.take("system")
    if given is None:
        return ()
    text = joined(members, given, ("text",), "system") if isinstance(given, list) else given
    if not isinstance(text, str):
        raise members.wrong("system", given, "a text, or a list of text blocks")
    return (ChatMessage("system", text),)


def _turns(members: Members) -> tuple[ChatMessage, ...]:
    given = members.take("messages")
    if not isinstance(given, list) or not given or len(given) > MOST_MESSAGES:
        raise members.wrong("messages", given, "a list of messages, each with role and content")
    turns: list[ChatMessage] = []
    for at, one in enumerate(given):
        if not isinstance(one, dict) or one.get("role") not in ("user", "assistant"):
            raise members.wrong(f"messages[{at}]", one, "an object with role (user or assistant) and content")
        own = Members(one, f"messages[{at}].")
        role, content = own.text("role") or "", own.take("content")
        own.end()
        if isinstance(content, str):
            turns.append(ChatMessage(role, content))
        elif isinstance(content, list) and content and all(isinstance(block, dict) for block in content):
            turns += _turns_of(own, role, content)
        else:
            raise own.wrong("content", content, "a text, or a list of blocks")
    return tuple(turns)


def _turns_of(own: Members, role: str, blocks: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    """The turns of one message: results of tools are turns of their own, before what the user says beside them."""
    texts, calls, results = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            calls.append(_call(own, block))
        elif kind == "tool_result" and role == "user":
            results.append(_result(own, block))
        elif kind not in _THOUGHTS:
            texts.append(joined(own, [block], ("text",)))
    said = [ChatMessage(role, "".join(texts), tuple(calls))] if texts or calls else []
    return [*results, *said]


def _call(own: Members, block: Mapping[str, Any]) -> ToolCall:
    number, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(number, str) or not isinstance(name, str) or not isinstance(given, dict):
        raise own.wrong("content", dict(block), "tool_use with id, name and input")
    return ToolCall(number, name, json.dumps(given, ensure_ascii=False))


def _result(own: Members, block: Mapping[str, Any]) -> ChatMessage:
    number, content = block.get("tool_use_id"), block.get("content") or ""
    text = joined(own, content, ("text",)) if isinstance(content, list) else content
    if not isinstance(number, str) or not isinstance(text, str):
        raise own.wrong("content", dict(block), "tool_result with tool_use_id, and content of text")
    return ChatMessage("tool", text, tool_call_id=number)


def _tools(members: Members) -> ToolUse | None:
    tools = [_tool(given) for given in members.objects("tools", MOST_TOOLS, most_bytes=MOST_MEMBER_BYTES)]
    choice = members.inner("tool_choice")
    if choice is None:
        return tool_use(tools, "auto", None, parallel=True)
    kind, name = choice.text("type"), choice.text("name")
    parallel = not choice.flag("disable_parallel_tool_use")
    choice.end()
    if kind == "tool":
        return tool_use(tools, "named", name, parallel=parallel)
    if kind == "any":
        return tool_use(tools, "required", None, parallel=parallel)
    if kind == "none":
        return tool_use(tools, "none", None, parallel=parallel)
    if kind == "auto":
        return tool_use(tools, "auto", None, parallel=parallel)
    raise ApiError(400, f"tool_choice.type is {kind!r}; expected auto, any, tool or none", param="tool_choice.type")


def _tool(given: Members) -> Tool:
    kind = given.text("type")
    if kind not in {None, "custom"}:
        raise given.wrong("type", kind, "custom; others run at Anthropic only")
    for ignored in ("cache_control", "input_examples", "eager_input_streaming"):
        given.take(ignored)  # prompts that begin alike are kept here anyway
    return read_tool(given, "input_schema")
