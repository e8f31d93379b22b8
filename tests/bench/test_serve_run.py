"""A load test from its first request to its outcome."""

from __future__ import annotations

import os

import pytest

from lmtool.bench.serve_run import as_outcome, run
from lmtool.bench.targets import ModelTarget, Server
from lmtool.bench.workload import ServeBench
from lmtool.errors import ServerError, UsageError
from tests.scripted_model import VOCAB_SIZE, ScriptedModel


def server(*, vocab_size: int = VOCAB_SIZE, context: int = 5000, process: int | None = None) -> Server:
    return Server(ModelTarget(ScriptedModel()), "here", "scripted", vocab_size, context, process)


def told(_line: str) -> None:
    """Nobody reads what is going on."""


async def test_one_result_a_concurrency() -> None:
    """Each with its own requests: four for each that runs at once unless told otherwise."""
    report = await run(ServeBench(concurrency=(1, 3), output_len=4), server(process=os.getpid()), told)
    assert [result["load"] for result in report.results] == ["1 at once", "3 at once"]
    assert [result["completed"] for result in report.results] == [4, 12]
    assert all(result["output_tokens"] == 4 * result["completed"] for result in report.results)
    assert all(result["output_throughput"] > 0 for result in report.results)


async def test_an_open_loop_takes_the_place_of_the_closed_one() -> None:
    """One result a rate."""
    report = await run(ServeBench(rate=(500.0,), output_len=2, requests=6), server(), told)
    assert [(result["load"], result["completed"]) for result in report.results] == [("500 a second", 6)]


async def test_a_long_prompt_landing() -> None:
    """S6 tells the streams' gaps and the long prompt's wait beside those of a quiet server."""
    bench = ServeBench("S6", prompt_len=64, output_len=24)
    (result,) = (await run(bench, server(), told)).results
    assert result["completed"] == 16
    assert result["itl_p99_over_quiet"] > 0
    assert result["long_ttft_over_alone"] == pytest.approx(result["long_ttft_ms"] / result["long_ttft_alone_ms"])


async def test_what_cannot_be_measured() -> None:
    """Requests beyond the context are refused; a phase in which all fail is an error."""
    with pytest.raises(UsageError, match="does not fit"):
        await run(ServeBench(), server(context=10), told)
    with pytest.raises(ServerError, match="every request failed"):
        await run(ServeBench(prompt_len=64, output_len=2), server(vocab_size=10**9), told)


async def test_the_outcome_can_be_compared() -> None:
    """Rates are better higher, waits lower; goodput is told and not compared."""
    report = await run(ServeBench(concurrency=(2,), output_len=3), server(), told)
    found = as_outcome(report)
    metrics = found["metrics"]
    assert metrics["2 at once: output_throughput"]["better"] == "higher"
    assert metrics["2 at once: ttft_ms p99"]["better"] == "lower"
    assert not [name for name in metrics if "goodput" in name]
    assert found["settings"]["scenario"] == "S1"
