"""Responses."""

from __future__ import annotations

import pytest

from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from lmtool.protocol.providers.openai_responses import read

TOKEN = {"token": "Hi", "logprob": -0.5, "top_logprobs": []}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Hi", "logprobs": [TOKEN]}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
USAGE = {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {"type": "response.output_text.delta", "delta": "Hi", "logprobs": [TOKEN]},
            [TextDelta(0, "Hi", (ChunkToken("Hi", -0.5, []),))],
        ),
        ({"type": "response.reasoning_text.delta", "delta": "so"}, [TextDelta(0, "so", (), "reasoning")]),
        ({"type": "response.refusal.delta", "delta": "no"}, [TextDelta(0, "no", (), "refusal")]),
        (
            {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "arguments": ""}},
            [ToolCallDelta(0, 1, "c1", "f")],
        ),
        (
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
            [ToolCallDelta(0, 1, arguments="{}")],
        ),
        (
            {"type": "response.completed", "response": {"status": "completed", "output": [MESSAGE], "usage": USAGE}},
            [TokenUsage(3, 2, 1), ChoiceFinished(0, "stop")],
        ),
        (
            {
                "type": "response.incomplete",
                "response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            },
            [ChoiceFinished(0, "length")],
        ),
        (
            {
                "type": "response.incomplete",
                "response": {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            },
            [ChoiceFinished(0, "content_filter")],
        ),
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "server_error", "message": "broken"}},
            },
            [AnswerFailed("broken", "server_error")],
        ),
        ({"type": "error", "code": "c", "message": "m"}, [AnswerFailed("m", "c")]),
        ({"type": "error", "error": {"message": "told by AnswerFailed.of"}}, []),
        ({"type": "response.output_item.added", "item": {"type": "message"}}, []),
        ({"type": "response.output_text.done", "text": "Hi", "logprobs": [TOKEN]}, []),
        ({"type": 5}, []),
        ({}, []),
    ],
)
def test_streamed_events(event: dict[str, object], expected: list[object]) -> None:
    """Deltas bring text, tokens and arguments, once; the last event tells how it ended."""
    assert list(read(event)) == expected


def test_a_whole_response() -> None:
    """Items in order: reasoning, messages, calls; then usage and the ending, which calls decide."""
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    output = [reasoning, MESSAGE, CALL, {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]
    assert list(read({"object": "response", "status": "completed", "output": output, "usage": USAGE})) == [
        TextDelta(0, "so", (), "reasoning"),
        TextDelta(0, "Hi", (ChunkToken("Hi", -0.5, []),)),
        ToolCallDelta(0, 2, "c1", "f", "{}"),
        TextDelta(0, "no", (), "refusal"),
        TokenUsage(3, 2, 1),
        ChoiceFinished(0, "tool_calls"),
    ]
    assert list(read({"object": "response", "status": "cancelled"})) == [ChoiceFinished(0, "cancelled")]
