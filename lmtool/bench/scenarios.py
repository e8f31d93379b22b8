"""The scenarios that compare: a long prompt that lands among streams (S6), and streams held to a schema (S7)."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.bench import workload
from lmtool.bench.load import closed_loop, landing_loop
from lmtool.bench.record import Goal, checked, summary
from lmtool.bench.statistics import percentile, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.bench.record import Record
    from lmtool.bench.targets import Server
    from lmtool.bench.workload import Job, ServeBench

LANDING_AFTER = 8
"""Tokens that each stream has before the long prompt lands."""
ROUNDS = 5
"""Visits of free and of held streams, in turn."""


async def landing(bench: ServeBench, server: Server, tell: Callable[[str], None]) -> dict[str, Any]:
    """S6: the streams alone, the long prompt alone, then both."""
    streams, (alone, lands) = workload.landing(bench.shape, server.vocab_size, bench.seed)
    workload.check_fits([*streams, alone], server.context_length)
    many = len(streams)
    tell(f"{many} streams alone")
    checked(await closed_loop(server.target, streams[: bench.warmup], 1) if bench.warmup else [])
    quiet = checked(await closed_loop(server.target, streams, many))
    tell("the long prompt alone")
    (own,) = checked([await server.target.send(alone)])
    tell("the long prompt landing among them")
    began, used = time.perf_counter(), server.cpu_seconds()
    records, landed = await landing_loop(server.target, streams, lands, min(LANDING_AFTER, bench.shape.output_len))
    checked([landed])
    found = summary(checked(records), time.perf_counter() - began, Goal(), server.cpu_since(used))
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


async def held(bench: ServeBench, server: Server, many: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """S7: so many streams free and held to a schema, in turn; then first tokens of schemas that are new."""
    rounds = [_pair(bench, server, many, number) for number in range(ROUNDS + 1)]
    workload.check_fits(rounds[0][0], server.context_length)
    tell(f"{many} streams, free and held")
    for jobs in rounds[0]:  # what is computed or compiled once is not part of the comparison
        checked(await closed_loop(server.target, jobs, many))
    visits: dict[str, list[_Visit]] = {"free": [], "held": []}
    for number, (free, bound) in enumerate(rounds[1:]):
        for kind in ("free", "held") if number % 2 else ("held", "free"):
            visits[kind].append(await _visit(server, free if kind == "free" else bound, many))
    tell("first tokens of new schemas")
    records = [record for visit in visits["held"] for record in visit.records]
    seconds, used = (sum(getattr(visit, name) for visit in visits["held"]) for name in ("seconds", "cpu_seconds"))
    counted = all(visit.cpu_seconds for kind in visits.values() for visit in kind)
    return {
        "load": f"{many} held to a schema",
        **summary(records, seconds, Goal(), used or None),
        "held_over_free": _ratios(visits, "seconds"),
        **({"held_over_free_cpu": _ratios(visits, "cpu_seconds")} if counted else {}),
        **await _first_tokens(bench, server, many),
    }


@dataclass(frozen=True, slots=True)
class _Visit:
    """What became of the streams of a round."""

    records: Sequence[Record]
    seconds: float
    cpu_seconds: float
    """0 where nobody knows, or where it was less than one tick of the system's clock."""


async def _visit(server: Server, jobs: Sequence[Job], many: int) -> _Visit:
    began, used = time.perf_counter(), server.cpu_seconds()
    records = checked(await closed_loop(server.target, jobs, many))
    return _Visit(records, time.perf_counter() - began, server.cpu_since(used) or 0.0)


def _ratios(visits: dict[str, list[_Visit]], spent: str) -> dict[str, float]:
    """How many times as many tokens held streams get out of what is spent, round by round."""
    rates = {
        kind: [sum(record.tokens for record in visit.records) / getattr(visit, spent) for visit in found]
        for kind, found in visits.items()
    }
    told = spread([held / free for held, free in zip(rates["held"], rates["free"], strict=True)])
    assert told is not None
    return {"median": told.median, "low": told.low, "high": told.high}


def _pair(bench: ServeBench, server: Server, many: int, number: int) -> tuple[list[Job], list[Job]]:
    """Streams of a round without and with a constraint; no two rounds have a prompt in common."""
    seed = zlib.crc32(f"{bench.seed} {many} {number}".encode())
    lengths, size = bench.shape, server.vocab_size
    return workload.drawn(lengths, many, size, seed), workload.drawn(lengths, many, size, seed + 1, workload.schema(0))


async def _first_tokens(bench: ServeBench, server: Server, many: int) -> dict[str, float]:
    """How long a new prompt takes to its first token, a new schema, and both at once, which should be the longer one.

    Milliseconds; medians.
    """
    waits: dict[str, list[float]] = {"prompt": [], "schema": [], "both": []}
    long, short = workload.Shape(workload.COLD_PROMPT, 1, ""), workload.Shape(1, 1, "")
    for number in range(ROUNDS):
        for kind, found in waits.items():
            seed = zlib.crc32(f"{bench.seed} cold {many} {number} {kind}".encode())
            constraint = None if kind == "prompt" else workload.schema(seed)
            lengths = short if kind == "schema" else long
            jobs = workload.drawn(lengths, 1, server.vocab_size, seed, constraint)
            workload.check_fits(jobs, server.context_length)
            (record,) = checked([await server.target.send(jobs[0])])
            found.append(1000 * record.ttft)
    medians = {f"new_{kind}_ttft_ms": percentile(found, 50) for kind, found in waits.items()}
    longer = max(medians["new_prompt_ttft_ms"], medians["new_schema_ttft_ms"])
    return {**medians, "both_over_longer": medians["new_both_ttft_ms"] / longer}
