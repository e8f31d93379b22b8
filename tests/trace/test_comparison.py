"""Recordings compared request by request."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lmtool.trace.comparison import Comparison, Tolerance, compare, compare_replay, with_words
from lmtool.trace.events import Close, Done, Drop, Event, Frame, JsonText, Piece, Request, Response, Vocab
from lmtool.trace.exchanges import exchanges
from tests.trace.conftest import generate, token, tokens

ONE: list[Event] = [generate(0, 1), tokens(1, token(7) | {"finish_reason": "stop"})]
OTHER_ID: list[Event] = [generate(0, 5), tokens(1, token(7, 5) | {"finish_reason": "stop"})]


def compared(expected: list[Event], actual: list[Event]) -> list[Comparison]:
    """Comparisons at the level of ids."""
    return list(compare(exchanges(expected), exchanges(actual), "ids", Tolerance()))


def failures(expected: list[Event], actual: list[Event]) -> list[str]:
    """What is found and not about missing alternatives, which these short answers do not have."""
    found = [finding for one in compared(expected, actual) for finding in one.findings]
    return [str(finding) for finding in found if "top_logprobs" not in finding.message]


def test_ids_of_streams_may_differ() -> None:
    """A request is found by what it asks, not by its stream_id."""
    assert failures(ONE, OTHER_ID) == []


def test_missing_and_unexpected_requests_are_told() -> None:
    """A request without its like in the other recording fails, in both directions."""
    other: list[Event] = [generate(0, 1, max_tokens=5), *ONE[1:]]
    assert failures(ONE, other) == [
        "fail (shape) stream 1/1: the second trace has no such request: max_tokens: recorded 5, got 32",
        "fail (shape) stream 1/1: this GENERATE was not expected",
    ]
    assert failures([Frame(0, ">", 1, "x")], [])[0].endswith("no request of this kind")
    assert compared(ONE, [])[0].verdict == "fail"


def test_other_tokens_are_told_by_their_words() -> None:
    """Ids with their texts, where the recording explains them, and both logprobs."""
    other: list[Event] = [ONE[0], tokens(1, token(8) | {"finish_reason": "stop"})]
    words: list[Event] = [Vocab(0, 0, {7: " fox", 8: b"\xf0"})]
    found = compare_replay([*words, *ONE], other, "ids", Tolerance())[0].findings
    (told,) = [one.message for one in found if "expected token" in one.message]
    assert told == 'expected token 7 " fox", got 8 ⟨f0⟩; logprob -0.5000 and -0.5000'
    (bare,) = failures(ONE, other)
    assert "expected token 7, got 8; logprob" in bare
    assert with_words(Tolerance(), words).words == {7: " fox", 8: b"\xf0"}


def test_what_others_say_is_not_compared() -> None:
    """WATCH: that it is answered counts, not how often, nor what others said meanwhile."""
    ask = Frame(0, ">", 1, 'WATCH {"stream_id": "w", "lmtp": 1}')

    def answers(count: int) -> list[Event]:
        watch = '{"stream_id": "w", "watch": {"time": 1, "events": [], "lost": 0}}'
        return [ask, *(Frame(i + 1, "<", 1, f"MSG [{watch}]") for i in range(count))]

    assert failures(answers(1), answers(3)) == []
    assert failures(answers(3), [ask, Frame(1, "<", 1, 'MSG [{"stream_id": "w", "error": "no"}]')]) != []
    assert "expected one MSG" in failures(answers(1), [ask])[0]


def http(body: str, status: int = 200, *, done: bool = True) -> list[Event]:
    """One HTTP exchange."""
    events: list[Event] = [
        Request(0, 1, "GET", "/x", {}),
        Response(1, 1, status, "", {}),
        Piece(1, "body", 1, body[:3]),
        Piece(2, "body", 1, body[3:]),
    ]
    return [*events, Done(2, 1)] if done else events


def test_http_is_compared_by_status_and_bytes() -> None:
    """However a body was divided its bytes count; a status or a cut body is a matter of shape."""
    assert failures(http("abcdef"), http("abcdef")) == []
    (found,) = failures(http("abcdef"), http("abcxef"))
    assert found == "fail (ids) stream 1: body differs at byte 3: expected b'def', got b'xef'"
    assert failures(http("a"), http("a", 500)) == ["fail (shape) stream 1: expected status 200, got 500"]
    assert "got one that was cut" in failures(http("a"), http("a", done=False))[0]


def chat(*chunks: dict[str, object], id_: str = "a", reason: str = "stop") -> list[Event]:
    """A streamed chat completion; each chunk is a choice of one event."""
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    return [
        Request(0, 1, "POST", "/v1/chat/completions", {}),
        Response(1, 1, 200, "", {}),
        *[Piece(1, "sse", 1, f"data: {json.dumps({'id': id_, 'choices': [one]})}\n\n") for one in (*chunks, last)],
        Done(2, 1),
    ]


def said(text: str, index: int = 0, *logprobs: float) -> dict[str, object]:
    """A chunk of one choice; with logprobs each character is a token."""
    entries = [{"token": one, "logprob": p} for one, p in zip(text, logprobs, strict=False)]
    more = {"logprobs": {"content": entries}} if logprobs else {}
    return {"index": index, "delta": {"content": text}, **more}


def test_http_answers_are_compared_by_what_they_say() -> None:
    """Ids that a server makes up and how text is split over events do not matter; text, choices and endings do."""
    expected = chat(said("ab"), said("x", 1), said("c"))
    assert failures(expected, chat(said("a"), said("bc"), said("x", 1), id_="b")) == []
    assert failures(expected, chat(said("abd"), said("x", 1))) == [
        "fail (ids) stream 1 token 0: text differs at character 2: expected 'abc', got 'abd'"
    ]
    assert "stream 1.1" in failures(expected, chat(said("abc"), said("y", 1)))[0]
    assert "finish_reason" in failures(expected, chat(said("abc"), said("x", 1), reason="length"))[0]
    assert failures(expected, chat(said("abc"))) == ["fail (ids) stream 1.1: expected 2 entries, got 0"]


@pytest.mark.parametrize(("logprob", "found"), [(-1.0005, 0), (-1.1, 1)])
def test_logprobs_over_http(logprob: float, found: int) -> None:
    """Tokens that are named are compared one by one, their logprobs within the tolerance."""
    sides = [exchanges(chat(said("ab", 0, -1.0, one))) for one in (-1.0, logprob)]
    assert sum(len(one.findings) for one in compare(*sides, "numbers", Tolerance())) == found


MODELS = {
    "object": "list",
    "data": [
        {"id": "tiny", "object": "model", "created": 17, "idle_seconds": 4.1, "size_bytes": 590, "error": None},
        {"id": "other", "object": "model", "created": 17, "idle_seconds": None, "size_bytes": 700, "error": None},
    ],
}
STORED = {"id": "resp_a", "object": "response", "created_at": 5, "output": [{"id": "msg_b", "type": "message"}]}


def http_json(value: object, path: str = "/v1/models") -> list[Event]:
    """A body of JSON from this path."""
    asked, *answer = http("")
    return [replace(asked, path=path), answer[0], Piece(1, "body", 1, JsonText("", value, "compact")), Done(1, 1)]  # type: ignore[call-overload]


def changed(value: object, **members: object) -> object:
    """The same value, members of these names changed wherever they stand."""
    if isinstance(value, list):
        return [changed(one, **members) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: members.get(name, changed(one, **members)) for name, one in value.items()}


@pytest.mark.parametrize(
    ("value", "members"),
    [
        (MODELS, {"created": 99, "idle_seconds": 17.5}),
        (STORED, {"id": "resp_c", "created_at": 1000}),
        ({"response_id": "a", "total_duration": 1, "expires_at": "2026", "data": []}, {"response_id": "b"}),
        ({"total_duration": 1, "expires_at": "2026", "time": 1.5}, {"total_duration": 9, "expires_at": "x", "time": 2}),
        ({"data": [{"object": "embedding", "embedding": [0.5, -1.25]}]}, {"embedding": [0.50004, -1.25]}),
    ],
)
def test_what_servers_make_up_is_not_compared(value: object, members: dict[str, object]) -> None:
    """Ids, times and durations of any JSON answer; numbers that are not whole differ by less than the tolerance."""
    assert failures(http_json(value), http_json(changed(value, **members))) == []


@pytest.mark.parametrize(
    ("value", "members", "told"),
    [
        (MODELS, {"id": "gpt2"}, "$.data[0].id: expected 'tiny', got 'gpt2'"),
        (MODELS, {"size_bytes": 591}, "$.data[0].size_bytes: expected 590, got 591"),
        (MODELS, {"data": []}, "$.data: expected [{'id': 'tiny', 'object': 'model', 'created': 17,"),
        ({"model_id": "a"}, {"model_id": "b"}, "$.model_id: expected 'a', got 'b'"),
        ({"bos_token_id": 1}, {"bos_token_id": 2}, "$.bos_token_id: expected 1, got 2"),
        ({"embedding": [0.5]}, {"embedding": [0.52]}, "$.embedding[0]: expected 0.5, got 0.52"),
        ({"tokens": [5, 6]}, {"tokens": [5, 7]}, "$.tokens[1]: expected 6, got 7"),
        (MODELS, {"created": "today"}, "$.data[0].created: expected 17, got 'today'"),
        ({"ttl_seconds": 300}, {"ttl_seconds": [300]}, "$.ttl_seconds: expected 300, got [300]"),
    ],
)
def test_all_else_is_compared(value: object, members: dict[str, object], told: str) -> None:
    """A finding names the member, with both values; names of models, sizes and token ids are no made-up ids."""
    found = failures(http_json(value), http_json(changed(value, **members)))
    assert found[0].startswith(f"fail (ids) stream 1: body differs at {told}")


def test_a_member_must_be_there() -> None:
    """A made-up value may be another, but not be missing."""
    assert failures(http_json({"id": "a", "n": 1}), http_json({"n": 1})) == [
        "fail (ids) stream 1: body differs at $.id: expected 'a', got nothing"
    ]


def test_counters_are_not_compared() -> None:
    """Of /metrics only the status must be the same."""
    sides = [http_json(f"requests_total {count}", "/metrics") for count in (1, 2)]
    assert failures(*sides) == []


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (Close(2, 1, "server", 1009), []),
        (Close(2, 1, "server", 1000), ["expected code 1009, got code 1000"]),
        (Close(2, 1, "client", 1009), ["expected code 1009, got none"]),
        (Drop(2, 1, {"by": "server"}), ["expected code 1009, got an end without a close frame"]),
    ],
)
def test_a_server_must_leave_as_it_did(end: Event, found: list[str]) -> None:
    """What closed a connection in the recording closes it again, with the same code."""
    recorded = [*ONE, Close(2, 1, "server", 1009)]
    endings = [one for one in compare_replay(recorded, [*ONE, end], "shape", Tolerance()) if one.kind != "GENERATE"]
    assert [finding.message for one in endings for finding in one.findings] == found
