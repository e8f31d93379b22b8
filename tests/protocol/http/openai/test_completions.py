"""Completions, whole and in pieces, of a model that says what it is told to."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

from lmtool.core.types import ScoreRequest
from tests.protocol.http.saying import SayingModel, application

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
CALL = 'See.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def asked(model: SayingModel, path: str, body: dict[str, Any]) -> Any:
    """The answer, or the events of a streamed one."""
    with TestClient(application(model)) as http:
        answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_calls_of_tools() -> None:
    """A call is no text; the text before it stays; the answer ends with `tool_calls`."""
    body = {"messages": HELLO, "tools": TOOLS}
    (choice,) = asked(SayingModel(CALL), "/v1/chat/completions", body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "See."
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "f", "arguments": '{"a": 1}'})


def test_streamed_calls() -> None:
    """The name and id once, the arguments as they come, all choices beside each other."""
    body = {"messages": HELLO, "tools": TOOLS, "stream": True, "n": 2, "logprobs": True}
    events = asked(SayingModel(CALL), "/v1/chat/completions", body)
    for index in range(2):
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        calls = [call for choice in own for call in choice["delta"].get("tool_calls", [])]
        assert [call["function"]["name"] for call in calls if "id" in call] == ["f"]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
        assert "".join(choice["delta"].get("content") or "" for choice in own) == "See."
        assert own[-1]["finish_reason"] == "tool_calls"
        tokens = [entry["token"] for choice in own if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert "".join(tokens) == f"{CALL}<end>"


def test_usage_all_along() -> None:
    """`continuous_usage_stats` counts in each event, and the prompt from the first one on."""
    body = {"prompt": "abc", "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    events = asked(SayingModel("xy"), "/v1/completions", body)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]
    assert {event["usage"]["prompt_tokens"] for event in events} == {3}
    assert [choice["logprobs"] for event in events for choice in event["choices"]] == [None] * 3, "nobody asked"


def test_echo_streamed() -> None:
    """The first event of each answer is its prompt, with the logprobs that the prompt has."""
    body = {"prompt": ["ab", "cd"], "stream": True, "echo": True, "logprobs": 1, "max_tokens": 1}
    events = asked(SayingModel("xyz"), "/v1/completions", body)
    first = [event["choices"][0] for event in events[:2]]
    assert [choice["text"] for choice in first] == ["ab", "cd"]
    assert first[0]["logprobs"]["token_logprobs"] == [None, -2.0]
    offsets = [c["logprobs"]["text_offset"] for event in events[2:] if (c := event["choices"][0])["logprobs"]]
    assert offsets == [[2], [2]]


def test_prompt_logprobs() -> None:
    """As vLLM has them: by id, with rank, null for the first; of chats as of texts."""
    told = asked(SayingModel("x"), "/v1/completions", {"prompt": "ab", "prompt_logprobs": 1})
    entry = {"98": {"logprob": -2.0, "rank": 1, "decoded_token": "b"}}
    assert told["choices"][0]["prompt_logprobs"] == [None, entry]
    chat = asked(SayingModel("x"), "/v1/chat/completions", {"messages": HELLO, "prompt_logprobs": 0})
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == len("user: Hiassistant:")


def test_prompts_that_begin_alike() -> None:
    """Only what differs is scored again, and the numbers are the same."""
    model = SayingModel("x")
    with TestClient(application(model)) as http:
        for prompt in ("a long question: yes", "a long question: no", "a long question: yes"):
            ask = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1}
            (choice,) = http.post("/v1/completions", json=ask).json()["choices"]
            assert choice["text"] == prompt
            assert choice["logprobs"]["token_logprobs"] == [None, *[-2.0] * (len(prompt) - 1)]
    scored = [len(request.scored) for request in model.requests if isinstance(request, ScoreRequest)]
    assert scored == [len("a long question: yes") - 1, len("no")]


def test_the_best_of_three() -> None:
    """One of them is answered, all are counted."""
    told = asked(SayingModel("x"), "/v1/completions", {"prompt": "ab", "best_of": 3})
    assert [choice["text"] for choice in told["choices"]] == ["x"]
    assert told["usage"]["completion_tokens"] == 6


def test_an_error_in_the_midst() -> None:
    """An event, and then the end."""
    with TestClient(application(SayingModel("a" * 9, fails_after=4))) as http:
        text = http.post("/v1/completions", json={"prompt": "x", "stream": True}).text
    *_, error, done = [line for line in text.splitlines() if line]
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "it broke; try again"
