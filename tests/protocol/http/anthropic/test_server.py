"""The routes of the Messages API, on the embedded model and on one that says what it is told to."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.protocol.http.saying import SayingModel, application

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
