"""Anthropic's messages."""

from __future__ import annotations

import pytest

from lmtool.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.providers.anthropic_messages import read

USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}},
            },
            [TokenUsage(7, 1, 2)],
        ),
        ({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, []),
        ({"type": "content_block_start", "index": 1, "content_block": USE}, [ToolCallDelta(0, 1, "t1", "f")]),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            [TextDelta(0, "Hi")],
        ),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
            [TextDelta(0, "so", (), "reasoning")],
        ),
        (
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
            [ToolCallDelta(0, 1, arguments='{"a')],
        ),
        ({"type": "content_block_stop", "index": 0}, []),
        (
            {
                "type": "message_delta",
                "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
                "usage": {"output_tokens": 9},
            },
            [TokenUsage(None, 9, None), ChoiceFinished(0, "stop", "END")],
        ),
        ({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, [ChoiceFinished(0, "length")]),
        ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, [ChoiceFinished(0, "tool_calls")]),
        ({"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}, [ChoiceFinished(0, "pause_turn")]),
        ({"type": "message_stop"}, []),
        ({"type": "ping"}, []),
        ({"type": "content_block_delta", "delta": 5}, []),
    ],
)
def test_streamed_events(event: dict[str, object], expected: list[object]) -> None:
    """Blocks begin and go on; stop reasons are told in OpenAI's words where there is one."""
    assert list(read(event)) == expected


def test_a_whole_message() -> None:
    """Blocks in order, a call's arguments as JSON text."""
    content = [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Hi"}, {**USE, "input": {"a": "é"}}]
    message = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 5}}
    assert list(read(message)) == [
        TextDelta(0, "so", (), "reasoning"),
        TextDelta(0, "Hi"),
        ToolCallDelta(0, 2, "t1", "f", '{"a": "é"}'),
        TokenUsage(5, None, None),
        ChoiceFinished(0, "stop"),
    ]
