"""Routes and events of the Messages API, on the embedded model and on a scripted one."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from lmtool.core.types import TokenOutput, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.anthropic.requests import read
from lmtool.protocol.http.anthropic.server import Message
from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS
from tests.protocol.http.saying import SayingModel, application

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


FRANCE = {"max_tokens": 40, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def base(embedded: str) -> str:
    return embedded.replace("ws://", "http://") + "v1"


def posted(base: str, body: dict[str, Any], path: str = "/messages") -> Any:
    answer = httpx2.post(base + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_whole_and_streamed(base: str) -> None:
    """The same text; the tokens of the prompt are known from the first event on."""
    whole = posted(base, {**FRANCE, "temperature": 0})
    assert whole["content"] == [{"type": "text", "text": "The capital of France is Paris."}]
    assert (whole["stop_reason"], whole["type"], whole["role"]) == ("end_turn", "message", "assistant")
    text = httpx2.post(f"{base}/messages", json={**FRANCE, "temperature": 0, "stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert [event["type"] for event in events] == names
    said = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert said == whole["content"][0]["text"]
    counted = posted(base, {"messages": FRANCE["messages"]}, "/messages/count_tokens")["input_tokens"]
    usage = whole["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == events[0]["message"]["usage"]["input_tokens"]


def test_stop_sequences_and_a_beginning(base: str) -> None:
    """Which sequence it was is told; a last turn of the assistant is gone on from."""
    cut = posted(base, {**FRANCE, "temperature": 0, "stop_sequences": ["France", "Spain"]})
    assert (cut["content"][0]["text"], cut["stop_reason"], cut["stop_sequence"]) == (
        "The capital of ", "stop_sequence", "France",
    )  # fmt: skip
    begun = [*FRANCE["messages"], {"role": "assistant", "content": "The capital of"}]  # type: ignore[misc]
    assert posted(base, {**FRANCE, "temperature": 0, "messages": begun})["content"][0]["text"] == " France is Paris."


def test_a_call(base: str) -> None:
    """What must be called is called by its schema."""
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = posted(base, {**FRANCE, "tools": [TOOL], "tool_choice": choice})
    assert (answer["stop_reason"], answer["content"][0]["input"]) == ("tool_use", {"city": "Rome"})


def test_errors_have_their_own_form() -> None:
    """A status, or an event."""
    with TestClient(application(SayingModel("a" * 9, fails_after=4))) as http:
        wrong = http.post("/v1/messages", json={**FRANCE, "max_tokens": 0})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
        broken = http.post("/v1/messages", json={**FRANCE, "stream": True}).text
    *_, name, data = [line for line in broken.splitlines() if line]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"] == {"type": "api_error", "message": "it broke; try again"}
