"""`bench serve` itself: warms a server up, puts each load on it, and sums up."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.bench import workload
from lmtool.bench.load import closed_loop, landing_loop, open_loop
from lmtool.bench.processes import cpu_seconds
from lmtool.bench.record import Goal, summary
from lmtool.bench.result import Metric, outcome
from lmtool.bench.statistics import percentile
from lmtool.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.bench.record import Record
    from lmtool.bench.targets import Target
    from lmtool.bench.workload import Job, Scenario

MANY = 4
"""Requests for each that runs at once, where nobody said how many."""
LANDING_AFTER = 8
"""Tokens that each stream has before the long prompt lands."""
RATES = ("output_throughput", "tokens_per_cpu_s")
"""What runs are compared by. Goodput is not: a threshold turns a small change into a large one."""
LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("itl_ms", "p50"), ("itl_ms", "p99"))


@dataclass(frozen=True, slots=True)
class ServeBench:
    """What is to be measured. Fields match the flags of `lmtool bench serve`."""

    scenario: Scenario = "S1"
    prompt_len: int | None = None
    """None: the scenario's."""
    output_len: int | None = None
    concurrency: tuple[int, ...] = (1, 8, 64)
    rate: tuple[float, ...] = ()
    """Requests a second; these make an open loop in place of the closed one."""
    requests: int | None = None
    """In each phase; None: four for each that runs at once."""
    warmup: int = 2
    """Requests before the first phase, one after the other."""
    goal_ttft_ms: float = 1000.0
    seed: int = 0

    @property
    def shape(self) -> workload.Shape:
        """The lengths."""
        return workload.shape(self.scenario, self.prompt_len, self.output_len)


@dataclass(frozen=True, slots=True)
class Server:
    """Who is measured."""

    target: Target
    url: str
    model: str
    vocab_size: int
    context_length: int | None
    process: int | None
    """Its id on this machine; None where it is not known: then CPU time is not told."""


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What was found out; one entry of `results` a phase."""

    bench: ServeBench
    server: Server
    results: list[dict[str, Any]]


async def run(bench: ServeBench, server: Server, tell: Callable[[str], None]) -> ServeReport:
    """Do it all. Raises `UsageError` for requests that do not fit, `ServerError` when every one of a phase fails."""
    if bench.scenario == "S6":
        return ServeReport(bench, server, [await _landing(bench, server, tell)])
    alone = await _warm(bench, server)
    goal = Goal(bench.goal_ttft_ms / 1000, None if alone is None else 2 * alone)
    results = []
    phases: list[_AtOnce | _Arriving] = [_Arriving(rate) for rate in bench.rate]
    for phase in phases or [_AtOnce(many) for many in bench.concurrency]:
        tell(phase.name)
        jobs = _jobs(bench, server, bench.requests or MANY * phase.concurrency, phase.name)
        began, used = time.perf_counter(), _cpu(server)
        records = await phase.run(server.target, jobs, bench.seed)
        found = summary(_checked(records), time.perf_counter() - began, goal, _since(server, used))
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
    gaps = [gap for record in _checked(await closed_loop(server.target, jobs, 1)) for gap in record.gaps]
    return percentile(gaps, 50) if gaps else None


async def _landing(bench: ServeBench, server: Server, tell: Callable[[str], None]) -> dict[str, Any]:
    """S6: the streams alone, the long prompt alone, then both."""
    streams, (alone, lands) = workload.landing(bench.shape, server.vocab_size, bench.seed)
    workload.check_fits([*streams, alone], server.context_length)
    many = len(streams)
    tell(f"{many} streams alone")
    _checked(await closed_loop(server.target, streams[: bench.warmup], 1) if bench.warmup else [])
    quiet = _checked(await closed_loop(server.target, streams, many))
    tell("the long prompt alone")
    (own,) = _checked([await server.target.send(alone)])
    tell("the long prompt landing among them")
    began, used = time.perf_counter(), _cpu(server)
    records, landed = await landing_loop(server.target, streams, lands, min(LANDING_AFTER, bench.shape.output_len))
    _checked([landed])
    found = summary(_checked(records), time.perf_counter() - began, Goal(), _since(server, used))
    quiet_p99 = percentile([gap for record in quiet for gap in record.gaps], 99)
    busy_p99 = percentile([gap for record in records for gap in record.gaps], 99)
    told = {
        "quiet_itl_p99_ms": 1000 * quiet_p99,
        "itl_p99_over_quiet": busy_p99 / quiet_p99,
        "long_ttft_ms": 1000 * landed.ttft,
        "long_ttft_alone_ms": 1000 * own.ttft,
        "long_ttft_over_alone": landed.ttft / own.ttft,
    }
    return {"load": f"{many} and a long one", **found, **told}


def _checked(records: Sequence[Record]) -> Sequence[Record]:
    """The records. Raises `ServerError` when every request failed."""
    if records and not any(record.complete for record in records):
        errors = [record.error for record in records if record.error]
        raise ServerError(f"every request failed: {errors[0] if errors else 'no token came'}")
    return records


def _cpu(server: Server) -> float | None:
    return None if server.process is None else cpu_seconds(server.process)


def _since(server: Server, before: float | None) -> float | None:
    now = _cpu(server)
    return None if now is None or before is None else now - before


def as_outcome(report: ServeReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench, metrics = report.bench, dict[str, Metric]()
    for result in report.results:
        load = result["load"]
        for name in RATES:
            if name in result:
                metrics[f"{load}: {name}"] = Metric(result[name], "higher")
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
