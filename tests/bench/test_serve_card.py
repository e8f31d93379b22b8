"""The card of a load test."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lmtool.bench.serve_card import serve_card
from lmtool.bench.serve_run import ServeReport
from lmtool.bench.targets import ModelTarget, Server
from lmtool.bench.workload import ServeBench
from tests.scripted_model import ScriptedModel

RESULT: dict[str, Any] = {
    "load": "8 at once",
    "failed": 2,
    "output_throughput": 123.4,
    "goodput": 99.9,
    "ttft_ms": {"p50": 7.3, "p90": 9.0, "p99": 11.9},
    "tpot_ms": {"p50": 5.5, "p90": 6.0, "p99": 7.0},
    "e2el_ms": {"p50": 50.0, "p90": 60.0, "p99": 70.0},
}


def drawn(columns: int, **more: Any) -> str:
    server = Server(ModelTarget(ScriptedModel()), ":8080", "tiny", 100, None, None)
    stream = StringIO()
    report = ServeReport(ServeBench(), server, [{**RESULT, **more}])
    Console(file=stream, width=columns, color_system=None).print(serve_card(report, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_it_fits(columns: int) -> None:
    """No line is longer than the terminal is wide."""
    assert max(map(len, drawn(columns).splitlines())) <= columns


def test_it_says_what_was_measured() -> None:
    """Times, rates, what is missing, and what failed."""
    text = drawn(120)
    assert "7.3/11.9" in text
    assert "123.4" in text
    assert "2 requests failed" in text
    assert "tiny at :8080" in text


def test_a_landing_has_two_more_lines() -> None:
    """The two ratios."""
    more = {
        "itl_p99_over_quiet": 1.5,
        "quiet_itl_p99_ms": 10,
        "long_ttft_over_alone": 2.25,
        "long_ttft_alone_ms": 400,
    }
    text = drawn(100, **more)
    assert "1.50 times the quiet one of 10.0 ms" in text
    assert "2.25 times the 400 ms alone" in text


def test_held_streams_have_two_more_lines() -> None:
    """What a constraint costs, and what a first token waits for."""
    more = {
        "load": "32 held to a schema",
        "held_over_free": {"median": 0.97, "low": 0.94, "high": 1.02},
        "new_prompt_ttft_ms": 80.0,
        "new_schema_ttft_ms": 12.0,
        "new_both_ttft_ms": 84.0,
        "both_over_longer": 1.05,
    }
    text = " ".join(drawn(100, **more).split())
    assert "32 held to a schema: 0.97 times the tokens a second of free ones (0.94 to 1.02)" in text
    assert "80 ms of a new prompt, 12 of a new schema, 84 of both (1.05 times the longer one)" in text
