"""A load test from its first request to its outcome and card."""

from __future__ import annotations

import os
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lmtool.core.errors import ServerError, UsageError
from lmtool.measure.bench.serve_run import ServeReport, as_outcome, run, serve_card
from lmtool.measure.bench.targets import ModelTarget, Server
from lmtool.measure.bench.workload import ServeBench
from tests.scripted_model import VOCAB_SIZE, ScriptedModel


def server(*, vocab_size: int = VOCAB_SIZE, context: int = 5000, process: int | None = None) -> Server:
    return Server(ModelTarget(ScriptedModel()), "here", "scripted", vocab_size, context, process)


def ignore(_line: str) -> None:
    """No progress is shown."""


async def test_one_result_a_concurrency() -> None:
    """Each with its own requests: four for each that runs at once by default."""
    report = await run(ServeBench(concurrency=(1, 3), output_len=4), server(process=os.getpid()), ignore)
    assert [result["load"] for result in report.results] == ["1 at once", "3 at once"]
    assert [result["completed"] for result in report.results] == [4, 12]
    assert all(result["output_tokens"] == 4 * result["completed"] for result in report.results)
    assert all(result["output_throughput"] > 0 for result in report.results)


async def test_an_open_loop_takes_the_place_of_the_closed_one() -> None:
    """One result a rate."""
    report = await run(ServeBench(rate=(500.0,), output_len=2, requests=6), server(), ignore)
    assert [(result["load"], result["completed"]) for result in report.results] == [("500 a second", 6)]


async def test_a_long_prompt_landing() -> None:
    """S6 compares the streams' gaps and the long prompt's wait with those of a quiet server."""
    bench = ServeBench("S6", prompt_len=64, output_len=24)
    (result,) = (await run(bench, server(), ignore)).results
    assert result["completed"] == 16
    assert result["itl_p99_over_quiet"] > 0
    assert result["long_ttft_over_alone"] == pytest.approx(result["long_ttft_ms"] / result["long_ttft_alone_ms"])


async def test_what_cannot_be_measured() -> None:
    """Requests beyond the context are refused; a phase in which all fail is an error."""
    with pytest.raises(UsageError, match="does not fit"):
        await run(ServeBench(), server(context=10), ignore)
    with pytest.raises(ServerError, match="every request failed"):
        await run(ServeBench(prompt_len=64, output_len=2), server(vocab_size=10**9), ignore)


async def test_goodput_counts_what_is_as_fast_as_alone() -> None:
    """A server that sends several tokens at a time meets the goal that its own tokens set; one of 0 ms none meets."""
    (result,) = (await run(ServeBench(concurrency=(1,), output_len=4, goal_tpot_ms=1e6), server(), ignore)).results
    assert result["goodput"] == result["output_throughput"]
    (result,) = (await run(ServeBench(concurrency=(1,), output_len=4, goal_tpot_ms=0), server(), ignore)).results
    assert result["goodput"] == 0


async def test_the_outcome_can_be_compared() -> None:
    """Rates are better higher, waits lower; goodput is not compared."""
    report = await run(ServeBench(concurrency=(2,), output_len=3), server(), ignore)
    outcome = as_outcome(report)
    metrics = outcome["metrics"]
    assert metrics["2 at once: output_throughput"]["better"] == "higher"
    assert metrics["2 at once: ttft_ms p99"]["better"] == "lower"
    assert not [name for name in metrics if "goodput" in name]
    assert outcome["settings"]["scenario"] == "S1"


RESULT: dict[str, Any] = {
    "load": "8 at once",
    "failed": 2,
    "errors": {"status 500: overloaded": 2},
    "prompt_tokens": 29,
    "output_throughput": 123.4,
    "goodput": 99.9,
    "tokens_per_cpu_s": 345.6,
    "ttft_ms": {"p50": 7.3, "p90": 9.0, "p99": 11.9},
    "tpot_ms": {"p50": 5.5, "p90": 6.0, "p99": 7.0},
    "e2el_ms": {"p50": 50.0, "p90": 60.0, "p99": 70.0},
}


def render(columns: int, **more: Any) -> str:
    target = Server(ModelTarget(ScriptedModel()), ":8080", "tiny", 100, None, None)
    stream = StringIO()
    report = ServeReport(ServeBench(), target, [{**RESULT, **more}])
    Console(file=stream, width=columns, color_system=None).print(serve_card(report, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_card_fits(columns: int) -> None:
    """No line is longer than the terminal is wide."""
    assert max(map(len, render(columns).splitlines())) <= columns


def test_the_card_has_every_figure() -> None:
    """Times, rates, what is missing, and what failed."""
    text = render(120)
    for part in ("7.3/11.9", "5.5", "50.0/70.0", "123.4", "99.9", "345.6", " - "):
        assert part in text
    assert "2 requests failed" in text
    assert "2 of them: status 500: overloaded" in text
    assert "29 in" in text
    assert "tiny at :8080" in text


def test_a_landing_has_two_more_lines() -> None:
    """The two ratios."""
    more = {
        "itl_p99_over_quiet": 1.5,
        "quiet_itl_p99_ms": 10,
        "long_ttft_over_alone": 2.25,
        "long_ttft_alone_ms": 400,
    }
    text = render(100, **more)
    assert "1.50 times the quiet one of 10.0 ms" in text
    assert "2.25 times the 400 ms alone" in text


def test_constrained_streams_have_two_more_lines() -> None:
    """What a constraint costs, and what a first token waits for."""
    more = {
        "load": "32 with a schema",
        "constrained_over_free": {"median": 0.97, "low": 0.94, "high": 1.02},
        "constrained_over_free_cpu": {"median": 0.5, "low": 0.4, "high": 0.6},
        "new_prompt_ttft_ms": 80.0,
        "new_schema_ttft_ms": 12.0,
        "new_both_ttft_ms": 84.0,
        "both_over_longer": 1.05,
    }
    text = " ".join(render(100, **more).split())
    assert (
        "32 with a schema: 0.97 times the tokens a second of free streams (0.94 to 1.02), 0.50 times as many a sec"
        in text
    )
    assert "80 ms of a new prompt, 12 of a new schema, 84 of both (1.05 times the longer one)" in text
