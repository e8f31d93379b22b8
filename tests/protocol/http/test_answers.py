"""Answers while they grow."""

from __future__ import annotations

from lmtool.core.types import TokenOutput, ToolCall, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS


def said(answer: Answer, *texts: str, ended: str = "stop") -> None:
    for token, text in enumerate(texts):
        answer.add(TokenOutput(0, token, -float(token), None, text))
    answer.add(TokenOutput(0, finish_reason=ended, usage=Usage(1, 2), stopped_by="!"))  # type: ignore[arg-type]


def test_text() -> None:
    """What was written, how it ended and what stopped it."""
    answer = Answer(0, None)
    said(answer, "a", "b")
    assert (answer.text, answer.finish_reason, answer.stopped_by) == ("ab", "stop", "!")
    assert (answer.usage, len(answer.outputs), answer.mean_logprob) == (Usage(1, 2), 2, -0.5)


def test_calls() -> None:
    """An answer with calls ends with `tool_calls`, one that was cut with `length`; each call has an id of its own."""
    text = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    for ended, reason in (("stop", "tool_calls"), ("length", "length")):
        answer = Answer(0, None, TOOL_CALL_PARSERS["hermes"].reader(), id_length=9)
        said(answer, text, text, ended=ended)
        assert answer.finish_reason == reason
        first, second = answer.calls
        assert first == ToolCall(first.id, "f", "{}")
        assert len(first.id) == 9
        assert first.id != second.id


def test_marks_that_do_not_show() -> None:
    """A special token is shown to the reader, and to nobody else."""
    answer = Answer(0, None, TOOL_CALL_PARSERS["hermes"].reader(), {7: "<tool_call>"})
    answer.add(TokenOutput(0, 7, -1.0, None, ""))
    assert answer.add(TokenOutput(0, 1, -1.0, None, '{"name": "f", "arguments": {}}'))[0].name == "f"
    assert answer.text == ""


def test_one_call_only() -> None:
    """Where calls may not be parallel, the first one counts."""
    answer = Answer(0, None, TOOL_CALL_PARSERS["hermes"].reader(), max_calls=1)
    said(answer, *['<tool_call>{"name":"f","arguments":{}}</tool_call>'] * 2)
    assert len(answer.calls) == 1
