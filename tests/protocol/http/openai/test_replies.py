"""Chat and text completions in OpenAI's form, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

from lmtool.core.types import ScoreRequest, TokenOutput, Usage
from lmtool.protocol.http.answers import Answer
from lmtool.protocol.http.openai.replies import Reply, chat_logprobs, prompt_logprobs, text_logprobs
from lmtool.protocol.http.tools.feed import Delta
from tests.protocol.http.saying import SayingModel, application

REPLY = Reply("chat", "id", 5, "m")


class Bytes:
    """Token n is the byte n; 200 is half a character."""

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token(self, token_id: int) -> str:
        return "<end>"


def output(token: int, text: str, **more: object) -> TokenOutput:
    return TokenOutput(0, token, -0.5, ((token, -0.5), (66, -1.0)), text, **more)  # type: ignore[arg-type]


def test_a_whole_answer() -> None:
    """Text, ending and counts; the tokens that were cached are told."""
    answer = Answer(0, None)
    answer.add(output(65, "A"))
    answer.add(output(66, "B", finish_reason="stop", usage=Usage(3, 2, 1), warnings=("w",)))
    whole = REPLY.whole([answer], Usage(3, 2, 1), None)
    (choice,) = whole["choices"]  # type: ignore[misc]
    assert choice["message"] == {"role": "assistant", "content": "AB", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert whole["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip
    assert whole["warnings"] == ["w"]


def test_half_a_character() -> None:
    """Chat logprobs give its bytes; completions spell them out, as OpenAI does."""
    content = chat_logprobs([output(200, "")], Bytes(), 1)["content"]
    assert content[0]["bytes"] == [200]  # type: ignore[index]
    assert content[0]["token"] == "\ufffd"  # type: ignore[index]
    assert text_logprobs([output(200, "")], Bytes(), 0)["tokens"] == ["bytes:\\xc8"]


def test_offsets_and_alternatives() -> None:
    """Offsets count characters; as many alternatives as were asked for; none is null."""
    told = text_logprobs([TokenOutput(0, 67), output(65, "A")], Bytes(), 1, 10)
    assert told["text_offset"] == [10, 11]
    assert told["token_logprobs"] == [None, -0.5]
    assert told["top_logprobs"] == [None, {"A": -0.5}]
    assert text_logprobs([output(65, "A")], Bytes(), 0)["top_logprobs"] is None


def test_special_tokens_are_named() -> None:
    """One that adds nothing to the text shows what it is called; the chosen token is among the alternatives."""
    end = TokenOutput(0, 300, -3.0, ((65, -0.5),))
    assert chat_logprobs([end], Bytes(), 1)["content"][0]["token"] == "<end>"
    assert text_logprobs([end], Bytes(), 1)["top_logprobs"] == [{"A": -0.5, "<end>": -3.0}]


def test_ranks_of_a_prompt() -> None:
    """Equally likely tokens share the better one; of a token beyond the best that were asked for it is not known."""
    tied = TokenOutput(0, 68, -4.0, ((65, -0.5), (66, -0.5), (67, -1.0), (68, -4.0)))
    first, entry = prompt_logprobs([TokenOutput(0, 65), tied], Bytes(), 3)
    assert first is None
    assert entry is not None
    assert {name: told["rank"] for name, told in entry.items()} == {"65": 1, "66": 1, "67": 3, "68": None}


def test_chunks() -> None:
    """The first one says who speaks, the last one why it ended, one behind it counts."""
    assert REPLY.start(1)["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    ended = Answer(1, None, ended="length")
    last = REPLY.chunks(ended, [], None)[0]["choices"][0]
    assert (last["delta"], last["finish_reason"], last["index"]) == ({}, "length", 1)
    assert REPLY.usage(Usage(1, 2))["choices"] == []
    (text,) = Reply("text", "id", 5, "m").chunks(Answer(0, None), [Delta("x")], None)
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "x")  # type: ignore[index]


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
