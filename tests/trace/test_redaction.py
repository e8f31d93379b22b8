"""What a redacted trace still tells."""

from __future__ import annotations

import base64
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import UsageError
from lmtool.trace.codec import write_event
from lmtool.trace.events import Close, Drop, Event, Frame, JsonText, Message, Open, Request, Response, Turn, Vocab
from lmtool.trace.redaction import RedactedPart, Redaction, likely_keys, parse, without_keys
from tests.trace.conftest import generate, token, tokens
from tests.trace.strategies import events


def test_prompts_are_replaced() -> None:
    """Length and a salted hash stay, so that equal prompts are seen to be equal; everything else is as it was."""
    redaction = Redaction(("prompt",), b"salt")
    first, again, other = (redaction.apply(e) for e in (generate(1, 1), generate(2, 2), generate(3, 3, prompt=[9])))
    values = [
        e.content.value for e in (first, again, other) if isinstance(e, Frame) and isinstance(e.content, JsonText)
    ]
    prompts = [value["prompt"] for value in values if isinstance(value, dict)]
    assert prompts[0]["$redacted"] == "prompt"
    assert prompts[0]["n"] == 3
    assert prompts[0] == prompts[1]
    assert prompts[0]["sha256"] != prompts[2]["sha256"]
    assert isinstance(values[0], dict)
    assert values[0]["model"] == "m"


def test_another_salt_gives_another_hash() -> None:
    """A prompt cannot be found by hashing guesses, since the salt is thrown away."""
    assert Redaction(("prompt",), b"1").apply(generate(1)) != Redaction(("prompt",), b"2").apply(generate(1))


def test_vocabulary_of_prompts_goes() -> None:
    """Whoever writes explains the ids that are left: an event of vocabulary may be of a prompt."""
    for part in get_args(RedactedPart):
        redaction = Redaction((part,), b"")
        assert (redaction.apply(Vocab(1, 0, {5: "secret"})) is None) == (part != "headers")
        assert redaction.explains == (part != "text")


def test_http_prompts_and_headers_go() -> None:
    """`messages`, `prompt` and `input` of bodies; headers that are not known to be harmless; the query of a path."""
    body = JsonText(
        "", {"model": "m", "messages": [{"content": "secret"}], "system": "secret", "input": "secret"}, "py"
    )
    headers = {"authorization": "Bearer x", "content-type": "application/json"}
    told = Redaction(("headers", "prompt"), b"").apply(Request(0, 1, "POST", "/v1?key=secret", headers, body))
    assert isinstance(told, Request)
    assert told.headers == {"content-type": "application/json"}
    assert b"secret" not in told.wire_body()
    assert told.path == "/v1"
    response = Redaction(("headers",), b"").apply(Response(0, 1, 200, "OK", {"set-cookie": "a", "server": "b"}))
    assert response == Response(0, 1, 200, "OK", {"server": "b"})
    opened = Redaction(("headers",), b"").apply(Open(0, 1, {"path": "/?key=secret", "agent": "a"}))
    assert opened == Open(0, 1, {"path": "/", "agent": "a"})


@pytest.mark.parametrize(
    "body",
    [
        {"message": "secret", "chat_history": ["secret"], "preamble": "secret", "tool_results": ["secret"]},
        {"message": {"role": "user", "content": "secret"}, "messageHistory": ["secret"], "message_history": ["secret"]},
        {"message": {}, "override_params": {"a": {"message": "secret"}}},
        {"model": {"name": "a", "messages": ["secret"]}},
        {"texts": ["secret"], "documents": ["secret"]},
        {"prompt": "a", "suffix": "secret"},
    ],
)
def test_prompts_of_every_api_go(body: dict[str, object]) -> None:
    """Cohere's, the unified API's in each of its forms, and what follows a gap; the rest of the body stays."""
    event = Request(0, 1, "POST", "/v1/chat", {}, JsonText("", {**body, "temperature": 0.5}, "py"))
    redacted = Redaction(("prompt",), b"").apply(event)
    assert isinstance(redacted, Request)
    assert b"secret" not in redacted.wire_body()
    assert b'"temperature": 0.5' in redacted.wire_body()


def test_text_that_was_not_taken_apart_may_hold_a_prompt() -> None:
    """An exact text of a client goes wholly."""
    told = Redaction(("prompt",), b"").apply(Frame(0, ">", 1, 'GENERATE {"prompt": [5], "temperature": Infinity}'))
    assert isinstance(told, Frame)
    assert "[5]" not in str(told.wire())


@given(events)
def test_nothing_asked_nothing_changed(event: Event) -> None:
    """Without a kind to redact every event stays as it is."""
    assert Redaction((), b"").apply(event) == event


@given(st.lists(events, max_size=4), st.sets(st.sampled_from(get_args(RedactedPart))))
def test_any_event_can_be_redacted(some: list[Event], what: set[RedactedPart]) -> None:
    """What is left can be written."""
    redaction = Redaction(tuple(what), b"")
    for event in some:
        if (left := redaction.apply(event)) is not None:
            write_event(left, "py")


@given(events)
def test_redacting_twice_changes_nothing_more(event: Event) -> None:
    """A mark is not redacted again."""
    redaction = Redaction(("headers", "prompt"), b"")
    once = redaction.apply(event)
    if isinstance(event, Frame) and isinstance(event.content, JsonText) and isinstance(event.content.value, dict):
        assert once is not None
        assert redaction.apply(once) == once


def test_kinds_are_checked() -> None:
    """Names with commas, in any order; an unknown one is refused with the known ones."""
    assert parse("prompt, headers") == ("headers", "prompt")
    assert parse("") == ()
    with pytest.raises(UsageError, match="cannot redact 'promt'"):
        parse("promt")


def test_keys_are_found() -> None:
    """What looks like a key is named without telling it; ordinary text is not suspected."""
    key = "sk-" + "a1" * 20
    body = JsonText("", {"messages": f"my key is {key}"}, "py")
    (shown,) = likely_keys(Request(0, 1, "POST", "/", {}, body))
    assert key not in shown
    assert likely_keys(Frame(0, ">", 1, f"GENERATE {key}")) == [shown]
    assert likely_keys(generate(0)) == []
    assert likely_keys(Vocab(0, 0, {1: key})) == []


def test_keys_are_left_out() -> None:
    """`***` stands for what looks like a key, for a private key to its end; other text is the same object."""
    key = "sk-" + "a1" * 20
    pem = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
    assert without_keys(f"my key is {key}, and\n{pem}\nbye") == "my key is ***, and\n***\nbye"
    assert without_keys("-----BEGIN EC PRIVATE KEY-----\nMIIE") == "***"
    text = "nothing to hide"
    assert without_keys(text) is text


@pytest.mark.parametrize("part", ["prompt", "text"])
def test_turns_go(part: RedactedPart) -> None:
    """The turns of a conversation hold prompts and answers: they go with either."""
    event = Turn(0, 0, {"number": 1, "prompt": "a", "answer": "b"})
    assert Redaction((part,), b"").apply(event) is None
    assert Redaction(("headers",), b"").apply(event) == event


@pytest.mark.parametrize(("direction", "part"), [(">", "prompt"), ("<", "text")])
def test_messages_of_sessions(direction, part):
    """Payloads of an Evergreen session go with the prompts where the client sent them, with the texts else."""
    chunk = {"metadata": {"mimetype": "text/plain"}, "data": "SGk="}
    value = {
        "actions": [{"name": "X"}],
        "nodeFragments": [{"id": "a", "chunkFragment": chunk}, {"id": "b", "chunkFragment": {"ref": "file:secret"}}],
    }
    event = Message(0.0, direction, 1, value)
    outputs = [{"name": "response", "id": "a"}, {"name": "reasoning", "id": "b"}]
    asked = Message(0.0, ">", 1, {"actions": [{"name": "GENERATE", "outputs": outputs}]})

    def after_request(*what):
        redaction = Redaction(what, b"salt")
        redaction.apply(asked)
        return redaction.apply(event)

    assert after_request(*({"prompt", "text", "headers"} - {part})) == event
    redacted = after_request(part)
    text = json.dumps(redacted.value)
    assert "SGk=" not in text
    assert "secret" not in text
    [data, ref] = [each["chunkFragment"] for each in redacted.fragments()]
    marks = (data["data"], ref["ref"]) if part == "text" else (data["data"]["$redacted"], ref["ref"]["n"])
    assert marks == (("Kioq", "***") if part == "text" else ("prompt", 11))
    assert data["metadata"] == chunk["metadata"]
    assert redacted.value["actions"] == value["actions"]
    hidden = Redaction((part,), b"salt").apply(Message(0.0, direction, 1, {"hex": "00ff"}))
    assert "00ff" not in json.dumps(hidden.value)


def test_keys_in_messages_of_sessions():
    """What looks like a key is found in a payload's base64."""
    data = base64.b64encode(b"my key is sk-abcdefghijklmnopqrstuv").decode()
    event = Message(0.0, ">", 1, {"nodeFragments": [{"id": "a", "chunkFragment": {"data": data}}]})
    assert likely_keys(event) == ["sk-abc…uv"]


def test_tokens_of_a_score_are_the_clients():
    """They go with prompts, where a model's stay; with texts all ids of answers go."""
    score = Frame(0, ">", 1, JsonText("SCORE", {"scored": [8], "stream_id": 2}, "py"))
    for part in ("prompt", "text"):
        redaction = Redaction((part,), b"")
        for event in (generate(0, 1), score):
            redaction.apply(event)
        for stream in (1, 2):
            event = redaction.apply(tokens(1, token(8, stream, top_logprobs={"8": -0.5})))
            [entry] = event.content.value
            assert entry["token"] == (None if stream == 2 or part == "text" else 8)


@pytest.mark.parametrize(
    "message", ['{"id": "x", "chunk": {"text": 1}}', '{"id":"x"}', '{"id": "x", "error": {"message": "secret"}}']
)
def test_messages_of_the_unified_socket(message):
    """They are JSON objects without a command: what a model said stays where prompts go, errors and requests do not."""
    redaction = Redaction(("prompt",), b"")
    chunk = {"provider_response": {"message": {"content": "said"}}, "finish_reason": None}
    answer = redaction.apply(Frame(0, "<", 1, json.dumps({"id": "x", "chunk": chunk})))
    assert "said" in answer.content
    assert "secret" not in redaction.apply(Frame(0, "<", 1, message)).content
    asked = redaction.apply(Frame(0, ">", 1, json.dumps({"id": "x", "message": {"content": "secret"}})))
    assert "secret" not in asked.content
    assert json.loads(asked.content)["id"] == "x"


def test_ended_connections_are_forgotten():
    """What is known of streams does not grow with the connections that there were."""
    redaction = Redaction(("headers", "prompt"), b"")
    for number in range(1, 50):
        redaction.apply(generate(0, 1, number))
        redaction.apply(Request(0, number, "POST", "/v1/completions", {}))
        redaction.apply(Close(1, number, "client") if number % 2 else Drop(1, number, {}))
    assert [len(kept) for kept in (redaction._streams, redaction._http, redaction._outputs)] == [0, 0, 0]


def test_prompts_stay_where_texts_go():
    """But for those that may repeat what a model said: with its turns, or after its first answer."""
    redaction = Redaction(("text",), b"")
    first, turns = generate(0), [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    again = Request(0, 2, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m", "messages": turns}, "py"))
    fresh = Request(0, 2, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m", "messages": turns[:1]}, "py"))
    assert redaction.apply(first) == first
    assert redaction.apply(fresh) == fresh
    assert b'"b"' not in redaction.apply(again).wire_body()
    redaction.apply(tokens(1, token(8)))
    assert "[5, 6, 7]" not in redaction.apply(first).wire()
