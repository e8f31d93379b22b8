"""Figures of a stream."""

from __future__ import annotations

import json
import math

import pytest

from lmtool.core.types import TokenOutput, Usage
from lmtool.terminal.chat.stream_record import (
    StreamRecord,
    as_json,
    stats_line,
    token_event,
)


def record(*tokens: tuple[float, float], reason: str = "length") -> StreamRecord:
    """Return the record of a stream that was asked for at 10 s. tokens: (arrival in ms after that, probability)."""
    made = StreamRecord(1, 10.0)
    for i, (ms, p) in enumerate(tokens):
        last = i == len(tokens) - 1
        output = TokenOutput(
            "x",
            token=i,
            logprob=math.log(p),
            top_logprobs=((i, math.log(p)),),
            text=f"t{i} ",
            finish_reason=reason if last else None,  # type: ignore[arg-type] # a literal in the tests
            usage=Usage(2, len(tokens)) if last else None,
        )
        made.add(10 + ms / 1000, output)
    return made


def test_line() -> None:
    """The line names reason, tokens, time to first token, rate, gaps and perplexity."""
    made = record((9.1, 0.5), (11.1, 0.5), (13.1, 0.5), (15.1, 0.5), (20.1, 0.5))
    assert stats_line(made) == "length · 5 tokens · ttft 9.1 ms · 364 tok/s · gap p50 2.0 p99 5.0 ms · ppl 2.0"


def test_perplexity_of_another_distribution() -> None:
    """What is no perplexity of the model's own says so, in the line and as JSON."""
    made = record((9.1, 0.5), (11.1, 0.5))
    assert as_json(made, "m")["logprobs_mode"] == "raw"
    made.logprobs_mode = "biased"
    assert stats_line(made).endswith("ppl 2.0 (biased)")
    assert as_json(made, "m")["logprobs_mode"] == "biased"


def test_line_of_little() -> None:
    """What is not known is left out: one token has no rate, none has no ttft."""
    assert stats_line(record((9.1, 1.0), reason="stop")) == "stop · 1 token · ttft 9.1 ms · ppl 1.0"
    empty = StreamRecord(1, 0.0)
    empty.add(0.1, TokenOutput("x", finish_reason="cancelled"))
    assert stats_line(empty) == "cancelled · 0 tokens"
    failed = StreamRecord(1, 0.0)
    failed.add(0.1, TokenOutput("x", error="no", error_code="overloaded"))
    assert stats_line(failed) == "error · 0 tokens"


def test_tokens_of_one_frame_make_no_gap() -> None:
    """Tokens of one frame arrived together: gaps are between frames, and the rate counts what came after the first."""
    made = record((10, 0.5), (10, 0.5), (20, 0.5), (20, 0.5))
    assert made.gaps == [pytest.approx(0.01)]
    assert made.rate == pytest.approx(200)
    assert record((10, 0.5), (10, 0.5)).rate is None


def test_json() -> None:
    """One object holds text, tokens, usage and timings; it is valid JSON whatever the numbers."""
    made = record((10, 0.5), (20, 0.25))
    found = json.loads(json.dumps(as_json(made, "m"), allow_nan=False))
    assert found["text"] == "t0 t1 "
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "cached_tokens": 0}
    assert found["timings"]["ttft_ms"] == 10
    assert found["timings"]["gap_p50_ms"] == 10
    assert found["tokens"][1] == {
        "stream_id": 1,
        "time": 0.02,
        "token": 1,
        "logprob": math.log(0.25),
        "text": "t1 ",
        "finish_reason": "length",
        "top_logprobs": {"1": math.log(0.25)},
    }


def test_event_without_token() -> None:
    """An ending without a token has none; an error has its sentence and code; infinity becomes null."""
    made = StreamRecord(3, 0.0)
    ending = token_event(made, 0.5, TokenOutput("x", finish_reason="cancelled"))
    assert ending == {"stream_id": 3, "time": 0.5, "finish_reason": "cancelled"}
    failed = token_event(made, 0.5, TokenOutput("x", error="no", error_code="overloaded"))
    assert failed == {"stream_id": 3, "time": 0.5, "error": "no", "error_code": "overloaded"}
    assert token_event(made, 0.5, TokenOutput("x", token=1, logprob=-math.inf))["logprob"] is None
