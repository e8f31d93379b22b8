"""The events of a message."""

from __future__ import annotations

from typing import Any

from lmtool.core.types import TokenOutput, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.anthropic.requests import read
from lmtool.protocol.http.anthropic.server import Message
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def played(
    text: str, ended: str = "stop", *, stopped_by: str | None = None, last: int = 9
) -> tuple[Message, list[Any]]:
    call = read({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], "stop_sequences": ["!"]})
    answer = Answer(0, None, TOOL_CALL_PARSERS["hermes"].reader())
    message = Message(answer, call, "m", (9,))
    events = [message.start(3)]
    for letter in text:
        events += message.add(answer.add(TokenOutput(0, ord(letter), -0.5, None, letter)))
    ending = TokenOutput(0, last, -1.0, None, "", ended, Usage(3, 2, 1), stopped_by=stopped_by)  # type: ignore[arg-type]
    events += message.add(answer.add(ending))
    return message, [*events, *message.end(Usage(3, 2, 1))]


def test_a_text() -> None:
    """A block begins, grows and stops; then the reason, then the end."""
    message, events = played("Hi")
    assert [event["type"] for event in events] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["usage"] == {"input_tokens": 3, "output_tokens": 0}
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["cache_read_input_tokens"] == 1
    assert message.whole(Usage(3, 2, 1))["content"] == [{"type": "text", "text": "Hi"}]
    assert message.whole(Usage(3, 2, 1))["usage"]["input_tokens"] == 2


def test_text_and_calls() -> None:
    """A block each, in order; the input of a call is an object."""
    message, events = played(f"See. {CALL}{CALL}")
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in starts] == ["text", "tool_use", "tool_use"]
    assert [event["index"] for event in starts] == [0, 1, 2]
    pieces = [event for event in events if event["type"] == "content_block_delta" and event["index"] == 1]
    assert "".join(event["delta"]["partial_json"] for event in pieces) == '{"a": 1}'
    assert message.stop_reason == "tool_use"
    assert message.whole(Usage(3, 2))["content"][1]["input"] == {"a": 1}


def test_why_it_ended() -> None:
    """A stop sequence by name where the model tells, by the last token where it does not."""
    assert played("Hi", "length")[0].stop_reason == "max_tokens"
    for more in ({"stopped_by": "!"}, {"last": 5}):
        _, events = played("Hi", **more)  # type: ignore[arg-type]
        assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "!"}


def test_a_call_that_was_cut() -> None:
    """Its input cannot be an object of its own; nothing is lost."""
    message, _ = played('<tool_call>{"name": "f", "arguments": {"a', "length")
    assert message.whole(Usage(3, 2))["content"] == [
        {"type": "tool_use", "id": message.answer.calls[0].id, "name": "f", "input": {"INVALID_JSON": '{"a'}}
    ]
