"""Calls of tools as they form, what the server counted, and failures with their status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.core.types import ToolCall
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.trace.answers import Answers
from lmtool.trace.description import describe
from lmtool.trace.events import Done, JsonText, Piece, Request, Response
from lmtool.trace.stream_events import OutputEvent, Stream, stream_of
from tests.fake_answers import Words, events

if TYPE_CHECKING:
    from lmtool.protocol.providers.answer_events import Api
    from lmtool.trace.events import Event

PATHS: dict[Api, str] = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
LOOP = Words(
    thoughts=("Hm, ", "hm."),
    texts=("Let me ", "see."),
    calls=(ToolCall("call_1", "weather", '{"city":"Oslo"}'), ToolCall("call_2", "time", '{"zone":"CET"}')),
    argument_size=5,
    reason="tool_calls",
)


def exchange(api: Api, *answer: object) -> list[Event]:
    """A request and its answer in server-sent events."""
    found: list[Event] = [Request(0.0, 1, "POST", PATHS[api], {}, JsonText("", {"model": "m", "stream": True}, "py"))]
    found.append(Response(0.1, 1, 200, "OK", {"content-type": "text/event-stream"}))
    found += [Piece(0.2 + i / 100, "sse", 1, JsonText("data: ", one, "py")) for i, one in enumerate(answer)]
    return [*found, Done(9.0, 1)]


def outputs(*recorded: Event) -> list[OutputEvent]:
    """What these events bring."""
    answers = Answers(stream_of)
    return [step for event in recorded for step in answers.follow(event) if isinstance(step, OutputEvent)]


def chat(call: dict[str, object] | None = None, tokens: tuple[str, ...] = (), **delta: object) -> dict[str, object]:
    """A chunk of chat completions."""
    members = delta if call is None else {"tool_calls": [call], **delta}
    named = {"content": [{"token": one, "logprob": -0.5, "top_logprobs": []} for one in tokens]}
    return {"choices": [{"index": 0, "delta": members, "logprobs": named if tokens else None, "finish_reason": None}]}


@pytest.mark.parametrize("api", PATHS)
def test_a_call_is_told_as_it_forms(api: Api) -> None:
    """Name and arguments of each call come delta by delta, each with its time, behind thought and text."""
    found = [one for one in outputs(*exchange(api, *events(api, LOOP, "m"))) if one.text]
    assert "".join(str(one.text) for one in found if one.call is None) == "Hm, hm.Let me see."
    calls = [one for one in found if one.call is not None]
    assert [one.text for one in calls] == [
        *("weather", '{"cit', 'y":"O', 'slo"}'),
        *("time", '{"zon', 'e":"C', 'ET"}'),
    ]
    assert [one.is_tool_name for one in calls] == [True, False, False, False] * 2
    assert [one.tool for one in calls] == ["weather"] * 4 + ["time"] * 4
    assert len({one.call for one in calls}) == 2
    assert len({one.time for one in found}) == len(found) == 12
    assert found[-1].stream.finish_reason == "tool_calls"


@pytest.mark.parametrize("api", PATHS)
def test_what_the_server_counted(api: Api) -> None:
    """The usage of the answer stands with its stream, wherever in the stream it came."""
    (last, *_) = reversed(outputs(*exchange(api, *events(api, LOOP, "m"))))
    assert last.stream.usage is not None
    assert (last.stream.usage.prompt_tokens, last.stream.usage.completion_tokens) == (7, 5)


def test_a_usage_in_words() -> None:
    """Parts are told where they are known; a later count never lowers one before it."""
    first = TokenUsage(20, 1, 12)
    assert str(first.updated(TokenUsage(None, 5, None, 2))) == "20 read (12 cached), 5 written (2 of a thought)"
    assert str(first.updated(TokenUsage(8, 0))) == "20 read (12 cached), 1 written"
    assert str(TokenUsage(None, 3)) == "3 written"


def test_tokens_of_a_call() -> None:
    """Where the chunk of a call names its tokens, these are the call; its text is theirs and not told again."""
    begun = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    found = outputs(
        *exchange(
            "chat",
            chat(content="So", tokens=("So",)),
            chat(begun, ("<call>", "f")),
            chat({"index": 0, "function": {"arguments": "{}"}}, ("{}",)),
            chat({"index": 1, "function": {"name": "g", "arguments": "[]"}}),
        )
    )
    assert [(one.text, one.call, one.tool, one.is_piece) for one in found if one.text] == [
        ("So", None, "", False), ("<call>", 0, "f", False), ("f", 0, "f", False), ("{}", 0, "f", False),
        ("g", 1, "g", True), ("[]", 1, "g", True),
    ]  # fmt: skip


def test_a_failure_says_its_status() -> None:
    """The status with the server's own words, and when to come again."""
    asked, *_ = exchange("chat")
    busy = Response(0.1, 1, 429, "Too Many Requests", {"retry-after": "30"})
    told = Piece(0.2, "body", 1, JsonText("", {"error": {"message": "slow down"}}, "py"))
    (failed,) = outputs(asked, busy, told, Done(1, 1))
    assert failed.stream.failure == "HTTP 429 Too Many Requests, retry after 30 s: slow down"
    (bare,) = outputs(asked, busy, Piece(0.2, "body", 1, "<html>"), Done(1, 1))
    assert bare.stream.failure == "HTTP 429 Too Many Requests, retry after 30 s"
    (lost,) = outputs(*exchange("chat"))
    assert lost.stream.failure == "the answer ended before the stream did"


def test_lines_for_people() -> None:
    """`trace show` and the inspector in a pipe tell names and arguments of calls apart from text."""
    answers: Answers[Stream] = Answers(stream_of)
    lines = [line for one in exchange("chat", *events("chat", LOOP, "m")) for line in describe(one, answers)]
    text = "\n".join(lines)
    assert '< piece "Let me "' in text
    assert '< tool "weather"' in text
    assert '< arguments "{\\"cit"' in text
