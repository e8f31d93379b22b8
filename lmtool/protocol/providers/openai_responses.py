"""Answers of OpenAI's Responses API: events of whole and streamed responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    token_entries,
)
from lmtool.protocol.providers.json_values import count_of, list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.protocol.providers.answer_events import AnswerEvent, TextKind

_DELTAS: Mapping[str, TextKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_ENDINGS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_PARTS: Mapping[str, TextKind] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "summary_text": "reasoning",
}


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """Answer events of one streamed event, by its type, or of a whole response."""
    kind = text_of(value.get("type"))
    if kind in _DELTAS:
        yield TextDelta(0, text_of(value.get("delta")), token_entries(value.get("logprobs")), _DELTAS[kind])
    elif kind in _ARGUMENTS:
        yield ToolCallDelta(0, _place(value), arguments=text_of(value.get("delta")))
    elif kind == "response.output_item.added":
        item = object_of(value.get("item"))
        if "name" in item:
            yield ToolCallDelta(0, _place(value), _call_id(item), text_of(item["name"]))
    elif kind in _ENDINGS:
        response = object_of(value.get("response"))
        failure = AnswerFailed.of(response)
        yield from [failure] if failure else _ending(response)
    elif kind == "error" and "error" not in value:
        yield AnswerFailed(
            text_of(value.get("message")) or "the server sent an error", text_of(value.get("code")) or None
        )
    elif value.get("object") == "response":
        yield from _whole(value)


def _whole(response: Mapping[str, object]) -> Iterator[AnswerEvent]:
    for place, item in enumerate(map(object_of, list_of(response.get("output")))):
        for part in map(object_of, (*list_of(item.get("summary")), *list_of(item.get("content")))):
            text = text_of(part.get("text", part.get("refusal")))
            tokens = token_entries(part.get("logprobs"))
            if text or tokens:
                yield TextDelta(0, text, tokens, _PARTS.get(text_of(part.get("type")), "text"))
        if "name" in item:
            arguments = text_of(item.get("arguments", item.get("input")))
            yield ToolCallDelta(0, place, _call_id(item), text_of(item["name"]), arguments)
    yield from _ending(response)


def _ending(response: Mapping[str, object]) -> Iterator[AnswerEvent]:
    usage = response.get("usage")
    if isinstance(usage, dict):
        yield TokenUsage.of(usage, "input_tokens", "output_tokens")
    status = text_of(response.get("status"))
    if status == "completed":
        calls = any("name" in object_of(item) for item in list_of(response.get("output")))
        yield ChoiceFinished(0, "tool_calls" if calls else "stop")
    elif status == "incomplete":
        reason = text_of(object_of(response.get("incomplete_details")).get("reason"))
        yield ChoiceFinished(0, "length" if reason in ("", "max_output_tokens", "max_tokens") else reason)
    elif status in ("failed", "cancelled"):
        yield ChoiceFinished(0, status)


def _place(value: Mapping[str, object]) -> int:
    return count_of(value.get("output_index")) or 0


def _call_id(item: Mapping[str, object]) -> str | None:
    return text_of(item.get("call_id", item.get("id"))) or None
