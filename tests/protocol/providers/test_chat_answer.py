"""Answers folded from their events."""

from __future__ import annotations

import pytest

from lmtool.core.types import ToolCall
from lmtool.protocol.providers.answer_events import (
    AnswerFailed,
    ChatAnswer,
    ChoiceFinished,
    ChunkToken,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from lmtool.protocol.providers.answer_reader import AnswerReader


def test_text_calls_and_usage() -> None:
    """Texts are joined by choice, arguments by call; later counts replace earlier ones, absent ones do not."""
    answer = ChatAnswer()
    answer.add(
        [
            TokenUsage(3),
            TextDelta(0, "so", kind="reasoning"),
            TextDelta(0, "He", (ChunkToken("He", -0.5),)),
            TextDelta(1, "Yo"),
            TextDelta(0, "llo"),
            ToolCallDelta(0, 1, "c", "f", '{"a"'),
            ToolCallDelta(0, 1, arguments=": 1}"),
            ToolCallDelta(0, 2, None, "g"),
            ChoiceFinished(0, "stop", "END"),
            TokenUsage(None, 7),
        ]
    )
    first = answer.choices[0]
    assert (first.content, first.reasoning, first.tokens) == ("Hello", ["so"], [ChunkToken("He", -0.5)])
    assert first.tool_calls == (ToolCall("c", "f", '{"a": 1}'), ToolCall("call_1", "g", "{}"))
    assert (first.finish_reason, first.stop) == ("tool_calls", "END")
    assert answer.choices[1].content == "Yo"
    assert answer.usage == TokenUsage(3, 7)
    assert not answer.finished
    answer.add([ChoiceFinished(1, "length")])
    assert answer.finished
    assert answer.choices[1].finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "empty", "finished", "malformed"),
    [
        (b'{"choices": []}', True, False, False),
        (b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}', True, True, False),
        (b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}', False, True, False),
        (b'{"choices": [{"message": {"content": "a"}}]}', False, False, False),
        (b"{}", True, False, False),
        (b"", True, False, False),
        (b'{"choices": [{"mess', True, False, True),
        (b"<html>busy</html>", True, False, True),
        (b"[1]", True, False, True),
        (b"null", True, False, True),
    ],
)
def test_answers_that_are_none(body: bytes, *, empty: bool, finished: bool, malformed: bool) -> None:
    """Empty, unfinished and malformed answers can be told apart."""
    reader, answer = AnswerReader("chat", "whole"), ChatAnswer()
    answer.add([*reader.feed(body), *reader.end()])
    assert (answer.empty, answer.finished, reader.malformed) == (empty, finished, malformed)


def test_the_first_failure_counts() -> None:
    """What a server says after it is not the reason."""
    answer = ChatAnswer()
    answer.add([AnswerFailed("lost", "server_error"), AnswerFailed("later")])
    assert answer.failure == AnswerFailed("lost", "server_error")


def test_malformed_streams() -> None:
    """A part that is no JSON object is malformed; comments, blank lines and OpenAI's end mark are not."""
    reader = AnswerReader("chat", "events")
    reader.feed(b': ping\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n')
    assert not reader.malformed
    reader.feed(b"data: {\n\n")
    assert reader.malformed
    lines = AnswerReader("ollama", "lines")
    lines.feed(b'{"message": {"content": "a"}}\n\n')
    assert not lines.malformed
    lines.feed(b'{"mess\n')
    assert lines.malformed
