"""Ollama's own API."""

from __future__ import annotations

from lmtool.protocol.providers.answer_events import ChoiceFinished, ChunkToken, TextDelta, TokenUsage, ToolCallDelta
from lmtool.protocol.providers.ollama import read


def test_lines_of_a_chat() -> None:
    """Text, thinking and calls stand in the message; logprobs beside it; the last line counts."""
    logprobs = [{"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []}]
    assert list(read({"message": {"content": "Hi"}, "logprobs": logprobs, "done": False})) == [
        TextDelta(0, "Hi", (ChunkToken("H", -0.5, []),))
    ]
    assert list(read({"message": {"content": "", "thinking": "so"}})) == [TextDelta(0, "so", (), "reasoning")]
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    assert list(read({"message": {"tool_calls": [call]}})) == [ToolCallDelta(0, 0, None, "f", '{"a": 1}')]
    last = {"message": {"content": ""}, "done": True, "done_reason": "length", "prompt_eval_count": 5, "eval_count": 2}
    assert list(read(last)) == [TokenUsage(5, 2), ChoiceFinished(0, "length")]


def test_lines_of_generate() -> None:
    """The text stands in the line itself; without a reason it is stop."""
    assert list(read({"response": "Hi", "done": True})) == [TextDelta(0, "Hi"), TokenUsage(), ChoiceFinished(0, "stop")]
