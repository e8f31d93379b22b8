"""Answers compared: every way a server may go wrong is caught at its level, with stream, position, expected and got."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from lmtool.trace.comparison import Finding, Level, Tolerance, Verdict, compare_answers, shape, worst
from lmtool.trace.events import Event, Frame, JsonText
from lmtool.trace.exchanges import LmtpExchange, exchanges
from tests.trace.conftest import generate, token, tokens

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
