"""Puts load on a server: closed and open loops, and the scenarios that compare (S6 and S7)."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.measure.bench import workload
from lmtool.measure.bench.record import Goal, percentile, require_success, spread, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.measure.bench.record import Record
    from lmtool.measure.bench.targets import Server, Target
    from lmtool.measure.bench.workload import Job, ServeBench

LANDING_AFTER = 8
"""Tokens that each stream has before the long prompt arrives."""
ROUNDS = 5
"""Runs of free and of constrained streams, in turn."""


async def closed_loop(target: Target, jobs: Sequence[Job], concurrency: int) -> list[Record]:
    """Send all requests, each as soon as fewer than `concurrency` are running; the records in their order."""
    pending = iter(enumerate(jobs))
    records: dict[int, Record] = {}

    async def work() -> None:
        for number, job in pending:  # one iterator for all: each takes the next
            records[number] = await target.send(job)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(jobs))):
            group.create_task(work())
    return [records[number] for number in range(len(jobs))]


async def open_loop(target: Target, jobs: Sequence[Job], times: Sequence[float]) -> list[Record]:
    """Send each request at its time, seconds from now, however many are running; the records in their order."""
    start = time.perf_counter()

    async def send_at(job: Job, at: float) -> Record:
        await asyncio.sleep(start + at - time.perf_counter())
        return await target.send(job)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send_at(job, at)) for job, at in zip(jobs, times, strict=True)]
    return [task.result() for task in tasks]


async def landing_loop(target: Target, streams: Sequence[Job], long: Job, after: int) -> tuple[list[Record], Record]:
    """Run the streams, and send the long prompt once each has `after` tokens or failed; their records, and its own."""
    ready = asyncio.Event()
    reached = set[int]()

    def on_token(record: Record) -> None:
        if record.error is not None or record.tokens >= after:
            reached.add(id(record))
        if len(reached) == len(streams):
            ready.set()

    async def land() -> Record:
        await ready.wait()
        return await target.send(long)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(target.send(job, on_token)) for job in streams]
        landing = group.create_task(land())
    return [task.result() for task in running], landing.result()


async def run_landing(bench: ServeBench, server: Server, note: Callable[[str], None]) -> dict[str, Any]:
    """S6: short streams alone, a long prompt alone, then both."""
    streams, (alone, landing) = workload.landing(bench.shape, server.vocab_size, bench.seed)
    workload.check_fits([*streams, alone], server.context_length)
    count = len(streams)
    note(f"{count} streams alone")
    require_success(await closed_loop(server.target, streams[: bench.warmup], 1) if bench.warmup else [])
    quiet = require_success(await closed_loop(server.target, streams, count))
    note("the long prompt alone")
    (long_alone,) = require_success([await server.target.send(alone)])
    note("the long prompt among them")
    start, used = time.perf_counter(), server.cpu_seconds()
    records, long = await landing_loop(server.target, streams, landing, min(LANDING_AFTER, bench.shape.output_len))
    require_success([long])
    figures = summary(require_success(records), time.perf_counter() - start, Goal(), server.cpu_since(used))
    quiet_p99, busy_p99 = (percentile([gap for one in ones for gap in one.gaps], 99) for ones in (quiet, records))
    return {
        "load": f"{count} and a long one",
        **figures,
        "quiet_itl_p99_ms": 1000 * quiet_p99,
        "itl_p99_over_quiet": busy_p99 / quiet_p99,
        "long_ttft_ms": 1000 * long.ttft,
        "long_ttft_alone_ms": 1000 * long_alone.ttft,
        "long_ttft_over_alone": long.ttft / long_alone.ttft,
    }


async def run_constrained(bench: ServeBench, server: Server, count: int, note: Callable[[str], None]) -> dict[str, Any]:
    """S7: `count` streams free and with a schema, in turn; then first tokens of schemas that are new."""
    rounds = [_pair(bench, server, count, number) for number in range(ROUNDS + 1)]
    workload.check_fits(rounds[0][0], server.context_length)
    note(f"{count} streams, free and constrained")
    for jobs in rounds[0]:  # what is computed or compiled once is not part of the comparison
        require_success(await closed_loop(server.target, jobs, count))
    runs: dict[str, list[_Run]] = {"free": [], "constrained": []}
    for number, (free, constrained) in enumerate(rounds[1:]):
        for kind in ("free", "constrained") if number % 2 else ("constrained", "free"):
            runs[kind].append(await _run(server, free if kind == "free" else constrained, count))
    note("first tokens of new schemas")
    records = [record for run in runs["constrained"] for record in run.records]
    seconds, used = (sum(getattr(run, name) for run in runs["constrained"]) for name in ("seconds", "cpu_seconds"))
    has_cpu = all(run.cpu_seconds for kind in runs.values() for run in kind)
    return {
        "load": f"{count} with a schema",
        **summary(records, seconds, Goal(), used or None),
        "constrained_over_free": _ratios(runs, "seconds"),
        **({"constrained_over_free_cpu": _ratios(runs, "cpu_seconds")} if has_cpu else {}),
        **await _first_tokens(bench, server, count),
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """All streams of one kind in one round."""

    records: Sequence[Record]
    seconds: float
    cpu_seconds: float
    """0 where it is unknown, or less than one tick of the system's clock."""


async def _run(server: Server, jobs: Sequence[Job], concurrency: int) -> _Run:
    start, used = time.perf_counter(), server.cpu_seconds()
    records = require_success(await closed_loop(server.target, jobs, concurrency))
    return _Run(records, time.perf_counter() - start, server.cpu_since(used) or 0.0)


def _ratios(runs: dict[str, list[_Run]], cost: str) -> dict[str, float]:
    """Tokens per unit of `cost` of constrained streams over those of free ones, round by round."""
    free, constrained = (
        [sum(record.tokens for record in run.records) / getattr(run, cost) for run in runs[kind]]
        for kind in ("free", "constrained")
    )
    ratios = spread([one / other for one, other in zip(constrained, free, strict=True)])
    return {"median": ratios.median, "low": ratios.low, "high": ratios.high}


def _pair(bench: ServeBench, server: Server, count: int, number: int) -> tuple[list[Job], list[Job]]:
    """Streams of a round without and with a constraint; no two rounds share a prompt."""
    seed = zlib.crc32(f"{bench.seed} {count} {number}".encode())
    lengths, size = bench.shape, server.vocab_size
    schema = workload.schema(0)
    return workload.sampled(lengths, count, size, seed), workload.sampled(lengths, count, size, seed + 1, schema)


async def _first_tokens(bench: ServeBench, server: Server, count: int) -> dict[str, float]:
    """Median milliseconds to the first token of a new prompt, of a new schema, and of both at once.

    Both at once should take as long as the longer one.
    """
    waits: dict[str, list[float]] = {"prompt": [], "schema": [], "both": []}
    long, short = workload.Shape(workload.COLD_PROMPT, 1, ""), workload.Shape(1, 1, "")
    for number in range(ROUNDS):
        for kind, times in waits.items():
            seed = zlib.crc32(f"{bench.seed} cold {count} {number} {kind}".encode())
            constraint = None if kind == "prompt" else workload.schema(seed)
            lengths = short if kind == "schema" else long
            jobs = workload.sampled(lengths, 1, server.vocab_size, seed, constraint)
            workload.check_fits(jobs, server.context_length)
            (record,) = require_success([await server.target.send(jobs[0])])
            times.append(1000 * record.ttft)
    medians = {f"new_{kind}_ttft_ms": percentile(times, 50) for kind, times in waits.items()}
    longer = max(medians["new_prompt_ttft_ms"], medians["new_schema_ttft_ms"])
    return {**medians, "both_over_longer": medians["new_both_ttft_ms"] / longer}
