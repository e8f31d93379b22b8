"""The events of a response."""

from __future__ import annotations

from typing import Any

from lmtool.core.types import TokenOutput, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.responses.replies import Response
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS


def played(text: str, ended: str = "stop") -> tuple[Response, list[dict[str, Any]]]:
    answer = Answer(0, None, TOOL_CALL_PARSERS["hermes"].reader())
    response = Response(answer, "m", {"tools": []})
    events = [*response.start()]
    for letter in text:
        output = TokenOutput(0, ord(letter), -0.5, None, letter)
        events += response.add(output, answer.add(output))
    last = TokenOutput(0, finish_reason=ended, usage=Usage(3, 2, 1))  # type: ignore[arg-type]
    events += response.add(last, answer.add(last))
    return response, [*events, *response.end(Usage(3, 2, 1))]


def test_a_text() -> None:
    """Each part is added, grows and is done; numbers count up; the last event holds everything."""
    _, events = played("Hi")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    whole = events[-1]["response"]
    assert whole["output"][0]["content"][0]["text"] == "Hi"
    assert whole["usage"]["input_tokens_details"] == {"cached_tokens": 1}
    assert whole["usage"]["total_tokens"] == 5
    assert whole["tools"] == []


def test_a_text_and_calls() -> None:
    """Items in the order in which they began, the arguments as they come."""
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    _, events = played(f"See. {call}{call}")
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[1]["arguments"] == '{"a": 1}'
    assert output[1]["call_id"] != output[2]["call_id"]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas if event["output_index"] == 2) == '{"a": 1}'
    assert {event["item_id"] for event in deltas} == {item["id"] for item in output[1:]}


def test_an_answer_that_was_cut() -> None:
    """It is incomplete, and says why; so is its last item."""
    _, events = played("Hi", "length")
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_an_empty_answer() -> None:
    """It is a message without text."""
    _, events = played("")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_failure() -> None:
    """The response says what broke."""
    response, _ = played("Hi")
    failed = response.failed(ApiError(500, "it broke"))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}
