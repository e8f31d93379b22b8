"""`bench serve` itself: warms a server up, puts each load on it, and sums up."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.bench import workload
from lmtool.bench.load import closed_loop, open_loop
from lmtool.bench.record import Goal, checked, summary
from lmtool.bench.result import Metric, outcome
from lmtool.bench.scenarios import held, landing
from lmtool.bench.statistics import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.bench.record import Record
    from lmtool.bench.targets import Server, Target
    from lmtool.bench.workload import Job, ServeBench

MANY = 4
"""Requests for each that runs at once, where nobody said how many."""
RATES = ("output_throughput", "tokens_per_cpu_s")
"""What runs are compared by. Goodput is not: a threshold turns a small change into a large one."""
LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("itl_ms", "p50"), ("itl_ms", "p99"))


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What was found out; one entry of `results` a phase."""

    bench: ServeBench
    server: Server
    results: list[dict[str, Any]]


async def run(bench: ServeBench, server: Server, tell: Callable[[str], None]) -> ServeReport:
    """Do it all. Raises `UsageError` for requests that do not fit, `ServerError` when every one of a phase fails."""
    if bench.scenario == "S6":
        return ServeReport(bench, server, [await landing(bench, server, tell)])
    if bench.scenario == "S7":
        return ServeReport(bench, server, [await held(bench, server, many, tell) for many in bench.concurrency])
    alone = await _warm(bench, server)
    goal = Goal(bench.goal_ttft_ms / 1000, None if alone is None else 2 * alone)
    results = []
    phases: list[_AtOnce | _Arriving] = [_Arriving(rate) for rate in bench.rate]
    for phase in phases or [_AtOnce(many) for many in bench.concurrency]:
        tell(phase.name)
        jobs = _jobs(bench, server, bench.requests or MANY * phase.concurrency, phase.name)
        began, used = time.perf_counter(), server.cpu_seconds()
        records = await phase.run(server.target, jobs, bench.seed)
        found = summary(checked(records), time.perf_counter() - began, goal, server.cpu_since(used))
        results.append({"load": phase.name, **found})
    return ServeReport(bench, server, results)


@dataclass(frozen=True, slots=True)
class _AtOnce:
    """A closed loop."""

    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.concurrency} at once"

    async def run(self, target: Target, jobs: Sequence[Job], _seed: int) -> Sequence[Record]:
        return await closed_loop(target, jobs, self.concurrency)


@dataclass(frozen=True, slots=True)
class _Arriving:
    """An open loop."""

    rate: float
    concurrency: int = 8
    """Stands in where the number of requests goes by it."""

    @property
    def name(self) -> str:
        return f"{self.rate:g} a second"

    async def run(self, target: Target, jobs: Sequence[Job], seed: int) -> Sequence[Record]:
        return await open_loop(target, jobs, workload.arrivals(self.rate, len(jobs), seed))


def _jobs(bench: ServeBench, server: Server, count: int, salt: str) -> list[Job]:
    """Fresh prompts for each phase: a server may remember those of an earlier one."""
    seed = zlib.crc32(f"{bench.seed} {salt}".encode())
    found = workload.jobs(bench.scenario, bench.shape, count, server.vocab_size, seed)
    workload.check_fits(found, server.context_length)
    return found


async def _warm(bench: ServeBench, server: Server) -> float | None:
    """Run a few requests one by one; the median gap of their tokens in seconds, None where there is none."""
    if not bench.warmup:
        return None
    jobs = _jobs(bench, server, bench.warmup, "warmup")[: bench.warmup]
    gaps = [gap for record in checked(await closed_loop(server.target, jobs, 1)) for gap in record.gaps]
    return percentile(gaps, 50) if gaps else None


def as_outcome(report: ServeReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench, metrics = report.bench, dict[str, Metric]()
    for result in report.results:
        load = result["load"]
        for name in RATES:
            if name in result:
                metrics[f"{load}: {name}"] = Metric(result[name], "higher")
        if "held_over_free" in result:
            metrics[f"{load}: held_over_free"] = Metric(result["held_over_free"]["median"], "higher")
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
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "results": report.results,
    }
    return outcome("serve", details, metrics)
