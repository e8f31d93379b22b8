"""Answers of Anthropic's messages, whole and streamed: blocks of content, without logprobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.providers.json_values import count_of, list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.providers.answer_events import AnswerEvent

_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a streamed event, by its type, or of a whole message."""
    kind, place = value.get("type"), count_of(value.get("index")) or 0
    if kind == "content_block_delta":
        delta = object_of(value.get("delta"))
        if "partial_json" in delta:
            yield ToolCallDelta(0, place, arguments=text_of(delta["partial_json"]))
        else:
            yield from _text(delta)
    elif kind == "content_block_start":
        yield from _block(object_of(value.get("content_block")), place, whole=False)
    elif kind == "message_delta":
        yield from _ending({**object_of(value.get("delta")), "usage": value.get("usage")})
    elif kind == "message_start":
        yield from _ending({**object_of(value.get("message")), "stop_reason": None})
    elif kind == "message":
        for number, block in enumerate(list_of(value.get("content"))):
            yield from _block(object_of(block), number, whole=True)
        yield from _ending(value)


def _block(block: Mapping[str, object], place: int, *, whole: bool) -> Iterator[AnswerEvent]:
    """A block of content: as it begins, or all of it."""
    if "name" in block:
        arguments = json.dumps(block.get("input"), ensure_ascii=False) if whole else ""
        yield ToolCallDelta(0, place, text_of(block.get("id")) or None, text_of(block["name"]), arguments)
    else:
        yield from _text(block)


def _text(block: Mapping[str, object]) -> Iterator[TextDelta]:
    if text := text_of(block.get("text")):
        yield TextDelta(0, text)
    if thinking := text_of(block.get("thinking")):
        yield TextDelta(0, thinking, kind="reasoning")


def _ending(message: Mapping[str, object]) -> Iterator[AnswerEvent]:
    usage = object_of(message.get("usage"))
    if usage:
        read_again = count_of(usage.get("cache_read_input_tokens"))
        parts = [count_of(usage.get(name)) for name in ("input_tokens", "cache_creation_input_tokens")]
        known = [part for part in (*parts, read_again) if part is not None]
        yield TokenUsage(sum(known) if known else None, count_of(usage.get("output_tokens")), read_again)
    reason = message.get("stop_reason")
    if reason is not None:
        stop = message.get("stop_sequence")
        yield ChoiceFinished(0, _REASONS.get(str(reason), str(reason)), stop if isinstance(stop, str) else None)
