"""Runs `bench serve`: warms a server up, puts each load on it, sums up; the outcome and the card."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.measure.bench import workload
from lmtool.measure.bench.load import closed_loop, open_loop, run_constrained, run_landing
from lmtool.measure.bench.record import Goal, percentile, require_success, summary
from lmtool.measure.bench.result import Metric, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.measure.bench.targets import Server
    from lmtool.measure.bench.workload import Job, ServeBench

REQUESTS_PER_STREAM = 4
"""Default number of requests of a phase, times its concurrency."""
OPEN_LOOP_REQUESTS = 32
RATES = ("output_throughput", "tokens_per_cpu_s")
"""Compared between runs. Goodput is not: a threshold turns a small change into a large one."""
LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("itl_ms", "p50"), ("itl_ms", "p99"))
REASONS = 3
"""Most reasons of failed requests on the card; the outcome has all of them."""
NARROW = 90
"""Columns below which the card leaves out its least important columns."""


@dataclass(frozen=True, slots=True)
class ServeReport:
    """Settings, server, and one entry of `results` a phase."""

    bench: ServeBench
    server: Server
    results: list[dict[str, Any]]


async def run(bench: ServeBench, server: Server, note: Callable[[str], None]) -> ServeReport:
    """Run all phases. Raises `UsageError` for requests that do not fit, `ServerError` where all of a phase fail."""
    if bench.scenario == "S6":
        return ServeReport(bench, server, [await run_landing(bench, server, note)])
    if bench.scenario == "S7":
        return ServeReport(bench, server, [await run_constrained(bench, server, n, note) for n in bench.concurrency])
    alone = await _warm_up(bench, server)
    tpot = 2 * alone if bench.goal_tpot_ms is None and alone is not None else None
    goal = Goal(bench.goal_ttft_ms / 1000, tpot if bench.goal_tpot_ms is None else bench.goal_tpot_ms / 1000)
    results = []
    for load in bench.rate or bench.concurrency:
        name = f"{load:g} a second" if bench.rate else f"{load} at once"
        default = OPEN_LOOP_REQUESTS if bench.rate else REQUESTS_PER_STREAM * int(load)
        note(name)
        jobs = _jobs(bench, server, bench.requests or default, name)
        start, used = perf_counter(), server.cpu_seconds()
        if bench.rate:
            records = await open_loop(server.target, jobs, workload.arrivals(load, len(jobs), bench.seed))
        else:
            records = await closed_loop(server.target, jobs, int(load))
        figures = summary(require_success(records), perf_counter() - start, goal, server.cpu_since(used))
        results.append({"load": name, **figures})
    return ServeReport(bench, server, results)


def _jobs(bench: ServeBench, server: Server, count: int, salt: str) -> list[Job]:
    """New prompts for each phase: a server may cache those of an earlier one."""
    seed = zlib.crc32(f"{bench.seed} {salt}".encode())
    jobs = workload.jobs(bench.scenario, bench.shape, count, server.vocab_size, seed)
    workload.check_fits(jobs, server.context_length)
    return jobs


async def _warm_up(bench: ServeBench, server: Server) -> float | None:
    """Run a few requests one by one; their median time per token after the first, in seconds; None without one."""
    if not bench.warmup:
        return None
    jobs = _jobs(bench, server, bench.warmup, "warmup")[: bench.warmup]
    records = require_success(await closed_loop(server.target, jobs, 1))
    times = [record.tpot for record in records if record.complete and record.tpot is not None]
    return percentile(times, 50) if times else None


def as_outcome(report: ServeReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench, metrics = report.bench, dict[str, Metric]()
    for result in report.results:
        load = result["load"]
        for name in RATES:
            if name in result:
                metrics[f"{load}: {name}"] = Metric(result[name], "higher")
        if "constrained_over_free" in result:
            metrics[f"{load}: constrained_over_free"] = Metric(result["constrained_over_free"]["median"], "higher")
        for name, percent in LATENCIES:
            if name in result:
                metrics[f"{load}: {name} {percent}"] = Metric(result[name][percent], "lower")
    details = {
        "url": report.server.url,
        "model": report.server.model,
        "settings": {
            "scenario": bench.scenario,
            "prompt_len": bench.shape.prompt_len,
            "output_len": bench.shape.output_len,
            "warmup": bench.warmup,
            "seed": bench.seed,
        },
        "results": report.results,
    }
    return outcome("serve", details, metrics)


def serve_card(report: ServeReport, columns: int) -> Group:
    """The report for a terminal of this width: a row for each phase."""
    bench, shape = report.bench, report.bench.shape
    head = Text(f"{report.server.model} at {report.server.url}", "bold")
    counted = next(
        (result["prompt_tokens"] for result in report.results if "prompt_tokens" in result), shape.prompt_len
    )
    settings = f"{bench.scenario}: {shape.meaning}; {counted:.0f} in, {shape.output_len} out"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    titles = ["ttft ms p50/p99", "itl ms p50/p99", "tok/s"]
    if columns >= NARROW:
        titles[1:2] = ["tpot ms p50", "itl ms p50/p99", "e2el ms p50/p99"]
        titles += ["goodput", "tok per CPU-s"]
    for title in titles:
        table.add_column(title, justify="right")
    for result in report.results:
        table.add_row(result["load"], *(_cell(result, title) for title in titles))
    notes = [Text(text) for result in report.results for text in (_landing(result), _constrained(result)) if text]
    if failed := sum(result["failed"] for result in report.results):
        notes.append(Text(f"{failed} requests failed and are not in the figures:", "yellow"))
        reasons = Counter[str]()
        for result in report.results:
            reasons.update(result["errors"])
        notes += [Text(f"  {count} of them: {reason}") for reason, count in reasons.most_common(REASONS)]
    return Group(head, Text(settings, "dim"), table, *notes)


def _cell(result: dict[str, Any], title: str) -> str:
    rates = {"tok/s": "output_throughput", "goodput": "goodput", "tok per CPU-s": "tokens_per_cpu_s"}
    if title in rates:
        return f"{result[rates[title]]:.1f}" if rates[title] in result else "-"
    name, _, percents = title.split()
    times = result.get(f"{name}_ms")
    return "/".join(f"{times[percent]:.1f}" for percent in percents.split("/")) if times else "-"


def _landing(result: dict[str, Any]) -> str:
    if "itl_p99_over_quiet" not in result:
        return ""
    streams, long = result["itl_p99_over_quiet"], result["long_ttft_over_alone"]
    quiet, alone = result["quiet_itl_p99_ms"], result["long_ttft_alone_ms"]
    return (
        f"streams' itl p99: {streams:.2f} times the quiet one of {quiet:.1f} ms\n"
        f"long prompt's ttft: {long:.2f} times the {alone:.0f} ms alone"
    )


def _constrained(result: dict[str, Any]) -> str:
    if "constrained_over_free" not in result:
        return ""
    ratio, cpu = result["constrained_over_free"], result.get("constrained_over_free_cpu")
    by_cpu = "" if cpu is None else f", {cpu['median']:.2f} times as many a second of CPU"
    return (
        f"{result['load']}: {ratio['median']:.2f} times the tokens a second of free streams "
        f"({ratio['low']:.2f} to {ratio['high']:.2f}){by_cpu}\n"
        f"ttft: {result['new_prompt_ttft_ms']:.0f} ms of a new prompt, {result['new_schema_ttft_ms']:.0f} of a new "
        f"schema, {result['new_both_ttft_ms']:.0f} of both ({result['both_over_longer']:.2f} times the longer one)"
    )
