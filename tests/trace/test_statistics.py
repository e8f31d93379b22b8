"""Figures of a trace."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.events import Done, Drop, Event, Frame, JsonText, Piece, Request, Response
from lmtool.trace.reader import Scan, TraceReader
from lmtool.trace.statistics import Histogram, TraceFigures
from tests.trace.conftest import CONVERSATION, generate, token, tokens
from tests.trace.strategies import events


def figures(*some: object) -> TraceFigures:
    """The figures of these events."""
    found = TraceFigures()
    for event in some:
        found.add(event)  # type: ignore[arg-type]
    return found


def test_figures_of_one_stream() -> None:
    """Time to first token from the request, rate and gaps between arrivals, perplexity, ending."""
    (one,) = figures(*CONVERSATION).as_json()["listed"]  # type: ignore[misc]
    assert isinstance(one, dict)
    assert (one["ttft_ms"], one["tokens"], one["tokens_per_second"]) == (9.0, 3, 100.0)
    assert (one["perplexity"], one["finish_reason"], one["prompt_tokens"]) == (1.649, "length", 3)
    assert one["gap_p50_ms"] == pytest.approx(10, rel=0.03)


def chat_answer(usage: object, *choices: int) -> list[Event]:
    """A chat of two messages whose answer came as whole text, with a choice for each number."""
    asked = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}
    told = [{"index": i, "message": {"content": "A fox is"}, "finish_reason": "stop"} for i in choices]
    body = {"choices": told, **({} if usage is None else {"usage": usage})}
    return [
        Request(0, 1, "POST", "/v1/chat/completions", {}, JsonText("", asked, "py")),
        Response(1, 1, 200, "OK", {"content-type": "application/json"}),
        Piece(1, "body", 1, JsonText("", body, "py")),
        Done(1, 1),
    ]


@pytest.mark.parametrize(
    ("usage", "choices", "counted"),
    [
        (None, (0,), [(None, None)]),
        ({"prompt_tokens": 20, "completion_tokens": 12}, (0,), [(20, 12)]),
        ({"prompt_tokens": 20, "completion_tokens": 24}, (0, 1), [(20, None), (None, None)]),
    ],
)
def test_tokens_are_counted_by_those_who_know(usage: object, choices: tuple[int, ...], counted: list[object]) -> None:
    """Messages and pieces of text are no tokens; the server's usage counts them, of several choices together."""
    found = figures(*chat_answer(usage, *choices)).as_json()
    assert (found["tokens"], found["pieces"]) == (0, len(choices))
    assert [(one["prompt_tokens"], one["completion_tokens"]) for one in found["listed"]] == counted  # type: ignore[attr-defined]


@pytest.mark.parametrize("prompt", ["Once", [{"buffer": "story"}, 7], {"$redacted": "prompt", "n": 5, "sha256": ""}])
def test_a_prompt_without_ids_has_no_known_length(prompt: object) -> None:
    """Texts, buffers and what was redacted have no number of tokens unless the server counts them."""
    counted = tokens(1, token(1) | {"finish_reason": "stop", "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    for ending, told in (([], None), ([counted], 9)):
        (one,) = figures(generate(0, prompt=prompt), *ending).as_json()["listed"]  # type: ignore[misc]
        assert one["prompt_tokens"] == told  # type: ignore[call-overload]


def test_tokens_of_one_frame_arrive_together() -> None:
    """A gap is between arrivals: two tokens of one frame make none."""
    found = figures(generate(0), tokens(1, token(1), token(2)), tokens(2, token(3)))
    assert found.gaps.count == 1
    assert found.as_json()["unfinished_streams"] == 1


def test_infinite_logprobs_leave_figures_finite() -> None:
    """A logprob of -Infinity is left out of the perplexity; what is printed is JSON."""
    found = figures(generate(0), Frame(1, "<", 1, 'TOKEN [{"token": 1, "stream_id": 1, "logprob": -Infinity}]'))
    text = json.dumps(found.as_json(), allow_nan=False)
    assert '"perplexity": null' in text
    assert '"tokens": 1' in text


def test_outputs_without_a_request_are_counted() -> None:
    """Tokens that nobody asked for, and those that come after the end of their stream, are told."""
    end = tokens(1, token(1) | {"finish_reason": "stop"})
    found = figures(generate(0), end, tokens(2, token(2)), tokens(2, token(2, 9)), Drop(3, 1)).as_json()
    assert found["outputs_of_no_stream"] == 2
    assert [(one["stream"], one["tokens"]) for one in found["listed"]] == [("1/1", 2), ("1/9", 1)]  # type: ignore[attr-defined]
    assert found["drops"] == 1


def test_streams_beyond_the_list_count_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the list ends, the sums do not."""
    monkeypatch.setattr("lmtool.trace.statistics.MOST_STREAMS", 20)
    count = 25
    ended = [tokens(1, token(1, i) | {"finish_reason": "stop"}) for i in range(count)]
    found = figures(*(generate(0, i) for i in range(count)), *ended)
    assert len(found.streams) == 20
    assert found.counts["streams"] == found.counts["tokens"] == count


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentiles_are_near(values: list[float], share: float) -> None:
    """A percentile is within 2.2 % of the exact one (nearest rank)."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(0, -(-len(values) * share // 1).__trunc__() - 1)]
    assert histogram.percentile(share) == pytest.approx(exact, rel=0.022)


def test_no_values_no_percentile() -> None:
    """Without values there is no percentile."""
    assert Histogram().percentile(0.5) is None


@given(st.lists(events, max_size=5))
def test_any_trace_has_figures(some: list[object]) -> None:
    """Whatever the events are, the figures are JSON."""
    json.dumps(figures(*some, Frame(0, "<", 1, JsonText("TOKEN", [{"stream_id": 1}], "py"))).as_json(), allow_nan=False)


def test_perplexity_is_of_the_tokens_that_have_a_logprob() -> None:
    """One without a logprob does not count, nor does a scored one with nothing before it."""
    half = figures(generate(0), tokens(1, token(1, logprob=-1.0), token(2) | {"logprob": None}))
    assert half.as_json()["listed"][0]["perplexity"] == 2.718  # type: ignore[index]
    for prompt, ppl in (([], math.e**2), ("", math.e**2), ([5], math.e)):
        score = Frame(0, ">", 1, JsonText("SCORE", {"prompt": prompt, "scored": [1, 2], "stream_id": 1}, "py"))
        told = figures(score, tokens(1, token(1, logprob=0.0), token(2, logprob=-2.0)))
        assert told.as_json()["listed"][0]["perplexity"] == pytest.approx(ppl, abs=1e-3)  # type: ignore[index]


@pytest.mark.parametrize("name", ["an_id_again", "cancel", "scores", "text_mode", "wrong_fields"])
def test_a_file_has_the_figures_of_its_events(name: str) -> None:
    """Read in blocks, a file has the figures that its events have one by one."""
    reader = TraceReader(Path(__file__).parents[2] / f"recordings/{name}.lmtp.jsonl")
    found = TraceFigures()
    found.read(Scan(reader))
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert found.as_json() == figures(*reader).as_json()
