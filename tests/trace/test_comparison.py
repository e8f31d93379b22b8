"""Recordings compared request by request."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lmtool.trace.comparison import (
    Comparison,
    Finding,
    Level,
    Tolerance,
    Verdict,
    compare,
    compare_answers,
    compare_replay,
    shape,
    with_words,
    worst,
)
from lmtool.trace.events import Close, Done, Drop, Event, Frame, JsonText, Piece, Request, Response, Vocab
from lmtool.trace.exchanges import LmtpExchange, exchanges
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


Entries = list[dict[str, Any]]


def answer(*entries: dict[str, Any], command: str = "TOKEN", **request: Any) -> LmtpExchange:
    """A request with these entries, one a frame."""
    events: list[Event] = [generate(0, **request)]
    events += [Frame(i + 1, "<", 1, JsonText(command, [entry], "py")) for i, entry in enumerate(entries)]
    (exchange,) = exchanges(events)
    assert isinstance(exchange, LmtpExchange)
    return exchange


def stream() -> Entries:
    """Four good tokens."""
    made = [token(10 + i, 1, -0.5 - i / 10, top_logprobs={str(10 + i): -0.5 - i / 10, "99": -0.51}) for i in range(4)]
    return [*made[:3], made[3] | {"finish_reason": "length"}]


def found(change: Callable[[Entries], object], level: Level) -> list[str]:
    """What is found after a change of the entries."""
    changed = copy.deepcopy(stream())
    change(changed)
    return [str(one) for one in compare_answers(answer(*stream()), answer(*changed), level, Tolerance(1e-3))]


def swap(entries: Entries) -> None:
    """Exchange two tokens."""
    entries[1], entries[2] = entries[2], entries[1]


MUTATIONS: list[tuple[str, Callable[[Entries], object], Level, str]] = [
    ("dropped", lambda e: e.pop(1), "ids", "fail (ids) stream 1/1 token 1: expected token 11, got 12"),
    ("swapped", swap, "ids", "fail (ids) stream 1/1 token 1: expected token 11, got 12"),
    (
        "logprob off by 0.01",
        lambda e: e[2].update(logprob=-0.71),
        "numbers",
        "fail (numbers) stream 1/1 token 2: expected logprob -0.7, got -0.71",
    ),
    (
        "no end",
        lambda e: e[3].update(finish_reason=None),
        "shape",
        "fail (shape) stream 1/1: expected an end (finish_reason or error), got after 4 entries",
    ),
    (
        "finish_reason missing",
        lambda e: e[1].pop("finish_reason"),
        "shape",
        "fail (shape) stream 1/1 token 1: expected finish_reason, got none",
    ),
    ("duplicated", lambda e: e.insert(1, e[1]), "ids", "fail (ids) stream 1/1 token 2: expected token 12, got 11"),
    (
        "end twice",
        lambda e: e.append(e[3]),
        "shape",
        "fail (shape) stream 1/1 token 3: expected nothing after the end, got 1 more entries",
    ),
    (
        "late token",
        lambda e: e.append(token(5)),
        "shape",
        "fail (shape) stream 1/1 token 3: expected nothing after the end, got 1 more entries",
    ),
    (
        "other reason",
        lambda e: e[3].update(finish_reason="stop"),
        "ids",
        "fail (ids) stream 1/1 token 3: expected finish_reason 'length', got 'stop'",
    ),
    (
        "alternative off",
        lambda e: e[0]["top_logprobs"].update({"99": -0.6}),
        "numbers",
        "fail (numbers) stream 1/1 token 0: expected -0.51 for token 99 in top_logprobs, got -0.6",
    ),
    (
        "error instead",
        lambda e: e.__setitem__(slice(1, None), [{"stream_id": 1, "error": "no"}]),
        "ids",
        "fail (ids) stream 1/1 token 1: expected token 11, logprob -0.6000, got the error 'no'",
    ),
    (
        "token as text",
        lambda e: e[1].update(token="11"),
        "shape",
        "fail (shape) stream 1/1 token 1: expected token as an id, got '11'",
    ),
    (
        "logprob missing",
        lambda e: e[1].pop("logprob"),
        "shape",
        "fail (shape) stream 1/1 token 1: expected logprob as a finite number, got nothing",
    ),
    (
        "no alternatives",
        lambda e: e[1].pop("top_logprobs"),
        "shape",
        "fail (shape) stream 1/1 token 1: expected top_logprobs, got none",
    ),
]


@pytest.mark.parametrize(("change", "level", "message"), [m[1:] for m in MUTATIONS], ids=[m[0] for m in MUTATIONS])
def test_a_mutated_answer_is_caught(change: Callable[[Entries], object], level: Level, message: str) -> None:
    """Caught at its level, with stream, position, expected and got."""
    assert any(one.startswith(message) for one in found(change, level)), found(change, level)


@pytest.mark.parametrize("level", ["shape", "ids", "numbers"])
def test_equal_answers_differ_in_nothing(level: Level) -> None:
    """No finding; a logprob within the tolerance is equal, another split over frames too."""
    assert found(lambda e: e[1].update(logprob=-0.6004), level) == []
    batched = exchanges([generate(0), tokens(1, *stream()[:3]), tokens(2, stream()[3])])[0]
    assert isinstance(batched, LmtpExchange)
    assert compare_answers(answer(*stream()), batched, level) == []


def test_levels_hide_what_is_above_them() -> None:
    """At `shape` other ids are right, at `ids` other numbers are."""
    assert found(lambda e: e[2].update(token=77), "shape") == []
    assert found(lambda e: e[2].update(logprob=-3), "ids") == []


def test_a_near_tie_is_a_verdict_of_its_own() -> None:
    """Two tokens as good as equally likely may change places; the stream is not compared further."""
    top = {"10": -0.5, "99": -0.51}
    ours = [token(10, top_logprobs=top), token(11) | {"finish_reason": "length", "top_logprobs": {"11": -0.5}}]
    theirs = [token(99, top_logprobs=top), token(55) | {"finish_reason": "length", "top_logprobs": {"55": -0.5}}]
    (tie,) = compare_answers(answer(*ours), answer(*theirs), "numbers")
    assert tie.verdict == "tie"
    assert "expected token 10, got 99; a near tie (0.0100 nats)" in tie.message
    assert worst(compare_answers(answer(*ours), answer(*theirs), "ids", Tolerance(tie=0.001))) == "fail"


def test_too_many_tokens_are_caught() -> None:
    """Not more than max_tokens, whose default is 32."""
    entries = stream()
    assert [one.message for one in shape(answer(*entries, max_tokens=3))] == ["expected at most 3 tokens, got 4"]
    assert list(shape(answer(*entries, max_tokens=4))) == []


def test_errors_end_streams_too() -> None:
    """An error where one was recorded is right, whatever it says."""
    ours, theirs = ({"stream_id": 1, "error": text} for text in ("one", "two"))
    assert compare_answers(answer(ours), answer(theirs), "numbers") == []
    assert worst(compare_answers(answer(ours), answer(*stream()), "ids")) == "fail"
    assert worst(list(shape(answer({"stream_id": 1, "error": {"code": 1}})))) == "fail"


def info(*replies: Frame) -> LmtpExchange:
    """A MODEL_INFO and what came."""
    (exchange,) = exchanges([Frame(0, ">", 1, JsonText("MODEL_INFO", {"stream_id": 1}, "py")), *replies])
    assert isinstance(exchange, LmtpExchange)
    return exchange


def msg(value: object) -> Frame:
    """A MSG."""
    return Frame(1, "<", 1, JsonText("MSG", value, "py"))


def test_one_msg_a_request() -> None:
    """None and two are wrong; a bare object is non-strict; facts that were recorded are there again."""
    right = msg([{"stream_id": 1, "model_info": {"model": "m", "x": 1}}])
    assert [one.message for one in shape(info())] == ["expected one MSG, got 0"]
    assert [one.message for one in shape(info(right, right))] == ["expected one MSG, got 2"]
    assert worst(list(shape(info(msg({"stream_id": 1, "model_info": {}}))))) == "non-strict"
    less = info(msg([{"stream_id": 1, "model_info": {"model": "n"}}]))
    assert [str(one) for one in compare_answers(info(right), less, "ids")] == [
        "info (ids) stream 1/1: model_info lacks x"
    ]
    wrong = info(msg([{"stream_id": 1, "error": "no"}]))
    assert worst(compare_answers(info(right), wrong, "shape")) == "fail"
    unknown = Frame(1, "<", 1, JsonText("HICCUP", [{"stream_id": 1}], "py"))
    assert worst(list(shape(info(right, unknown)))) == "info"


def test_a_scored_stream_needs_no_alternatives() -> None:
    """SCORE: tokens without top_logprobs are right."""
    asked = Frame(0, ">", 1, JsonText("SCORE", {"stream_id": 1, "scored": [7]}, "py"))
    (exchange,) = exchanges([asked, tokens(1, token(7) | {"finish_reason": "stop"})])
    assert isinstance(exchange, LmtpExchange)
    assert list(shape(exchange)) == []


def test_the_worst_verdict_is_that_on_the_whole() -> None:
    """Nothing found is a pass; a failure outweighs everything."""
    verdicts: list[Verdict] = ["info", "tie", "non-strict", "fail"]
    found = [Finding(verdict, "ids", "1/1", None, "") for verdict in verdicts]
    assert worst([]) == "pass"
    assert worst(found[:1]) == "info"
    assert worst(found[:3]) == "tie"
    assert worst(found) == "fail"


def test_a_finding_names_its_place() -> None:
    """Verdict, level, stream and token, then what was expected and what came."""
    message = "expected token 5, got 6"
    assert str(Finding("fail", "ids", "1/3", 2, message)) == f"fail (ids) stream 1/3 token 2: {message}"
    assert str(Finding("info", "shape", "1/3", None, "x")) == "info (shape) stream 1/3: x"
