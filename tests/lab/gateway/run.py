"""Runs `lab gateway`: gateways between one client and one provider, all in turn, round by round; and its card."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.core.errors import ServerError
from lmtool.measure.bench.contest import rotate
from lmtool.measure.bench.record import Spread, percentile, spread
from lmtool.measure.bench.result import Metric, outcome
from lmtool.measure.bench.targets import process_cpu_seconds, process_memory
from lmtool.net.http_client import open_client, reason_of
from tests.lab.gateway.processes import DIRECT, FORWARDER, Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.lab.gateway.processes import Route

WARMUP = 50
"""Requests to each gateway before the first round."""
ANSWER_SECONDS = 60.0
"""Longest silence of a gateway."""
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class GatewayBench:
    """Settings of one run. Fields match the flags of `lab gateway`."""

    requests: int = 1000
    """To each gateway in each round, by each of both loads."""
    concurrency: int = 32
    """Requests at once while CPU time is measured; latency is measured one by one."""
    rounds: int = 3
    stream: bool = False
    litellm: str | None = None
    """The Python of an environment with `litellm[proxy]`."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One route in one round."""

    cpu_ms: float
    """CPU time a request, with `concurrency` at once; 0 where there is no gateway."""
    rate: float
    """Requests a second meanwhile."""
    p50_ms: float
    """From a request to its answer's end, one by one."""
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A gateway's figures over all rounds."""

    cpu_ms: Spread
    """CPU time a request."""
    over_forwarder: Spread
    """CPU time over that of the bare forwarder, within each round."""
    added_p50_ms: Spread
    """Latency beyond that of the provider alone, within each round."""
    added_p99_ms: Spread
    rate: Spread
    """Requests a second, `concurrency` at once."""
    start_s: float
    """From the process's start to its first answer."""
    memory_mb: float
    """Resident at the end."""
    growth_mb: float
    """Since the end of the first round."""


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """Settings, and one standing a gateway."""

    bench: GatewayBench
    standings: Mapping[str, Standing]


async def run(bench: GatewayBench, note: Callable[[str], None]) -> GatewayReport:
    """Start everything, measure, end it. Raises `ConnectError`, `ResourceError`, `ServerError`, `TimeLimitError`."""
    async with AsyncExitStack() as stack:
        routes = await Processes(stack, note, stream=bench.stream).start_all(bench.litellm)
        client = await stack.enter_async_context(open_client(read_timeout=ANSWER_SECONDS))
        phases: dict[str, list[Phase]] = {route.name: [] for route in routes}
        memory: dict[str, list[float]] = {route.name: [] for route in routes}
        for route in routes:
            await _load(client, route, WARMUP, 1)  # what is loaded or opened once is not part of the comparison
        for number in range(bench.rounds):
            note(f"round {number + 1} of {bench.rounds}")
            for route in rotate(routes, number):
                phases[route.name].append(await _phase(client, route, bench))
                memory[route.name].append((process_memory(route.process) or 0.0) / 1e6 if route.process else 0.0)
    between = [route for route in routes if route.process is not None]
    return GatewayReport(bench, {route.name: _standing(route, phases, memory[route.name]) for route in between})


async def _phase(client: aiohttp.ClientSession, route: Route, bench: GatewayBench) -> Phase:
    before, start = _cpu_seconds(route), time.perf_counter()
    await _load(client, route, bench.requests, bench.concurrency)
    cpu, seconds = _cpu_seconds(route) - before, time.perf_counter() - start
    latencies = await _load(client, route, bench.requests, 1)
    p50, p99 = (1000 * percentile(latencies, percent) for percent in (50, 99))
    return Phase(1000 * cpu / bench.requests, bench.requests / seconds, p50, p99)


def _cpu_seconds(route: Route) -> float:
    return (process_cpu_seconds(route.process) or 0.0) if route.process else 0.0


async def _load(client: aiohttp.ClientSession, route: Route, count: int, concurrency: int) -> list[float]:
    """Send so many requests, so many at once; the seconds that each took. Raises `ServerError` for one that fails."""
    pending, latencies = iter(range(count)), list[float]()

    async def work() -> None:
        for _ in pending:  # one iterator for all: each takes the next
            latencies.append(await _seconds(client, route))

    failures: Sequence[BaseException] = ()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except* ServerError as failed:
        failures = failed.exceptions
    if failures:
        raise failures[0]
    return latencies


async def _seconds(client: aiohttp.ClientSession, route: Route) -> float:
    headers = _JSON if route.key is None else {**_JSON, "authorization": f"Bearer {route.key}"}
    start = time.perf_counter()
    try:
        async with client.post(route.url, data=route.body, headers=headers) as answer:
            text = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServerError(f"{route.name} gave no answer: {reason_of(error)}") from None
    if answer.status != HTTPStatus.OK or b"word19" not in text:
        raise ServerError(f"{route.name} answered {answer.status}: {text[:200].decode('utf-8', 'replace')}")
    return time.perf_counter() - start


def _standing(route: Route, phases: Mapping[str, Sequence[Phase]], memory: Sequence[float]) -> Standing:
    own = phases[route.name]
    with_forwarder, with_direct = (list(zip(own, phases[name], strict=True)) for name in (FORWARDER, DIRECT))
    return Standing(
        spread([one.cpu_ms for one in own]),
        spread([one.cpu_ms / max(bare.cpu_ms, 1e-9) for one, bare in with_forwarder]),
        spread([one.p50_ms - direct.p50_ms for one, direct in with_direct]),
        spread([one.p99_ms - direct.p99_ms for one, direct in with_direct]),
        spread([one.rate for one in own]),
        route.start_s,
        memory[-1],
        memory[-1] - memory[0],
    )


def as_outcome(report: GatewayReport) -> dict[str, Any]:
    """The report as `result.outcome` has it; the ratios to LiteLLM are those of medians."""
    metrics: dict[str, Metric] = {}
    for name, standing in report.standings.items():
        metrics[f"{name}: cpu_ms"] = Metric(standing.cpu_ms.median, "lower")
        metrics[f"{name}: added_p50_ms"] = Metric(standing.added_p50_ms.median, "lower")
        metrics[f"{name}: added_p99_ms"] = Metric(standing.added_p99_ms.median, "lower")
        metrics[f"{name}: start_s"] = Metric(standing.start_s, "lower")
        metrics[f"{name}: memory_mb"] = Metric(standing.memory_mb, "lower")
    settings = {name: value for name, value in asdict(report.bench).items() if name != "litellm"}
    results = {name: asdict(standing) for name, standing in report.standings.items()}
    return outcome("gateway", {"settings": settings, "results": results}, metrics)


def gateway_card(report: GatewayReport) -> Group:
    """The report for a terminal: a row for each gateway."""
    bench = report.bench
    answers = "streamed" if bench.stream else "whole"
    head = Text(f"{bench.rounds} rounds of {bench.requests:,} {answers} answers each", "bold")
    about = f"CPU with {bench.concurrency} at once; latency added to the provider's own, one by one; median (range)"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for title in ("CPU ms", "over forwarder", "added ms p50", "p99", "start s", "MB", "MB more"):
        table.add_column(title, justify="right")
    for name, one in report.standings.items():
        table.add_row(
            name,
            _shown(one.cpu_ms),
            _shown(one.over_forwarder),
            _shown(one.added_p50_ms),
            _shown(one.added_p99_ms),
            f"{one.start_s:.2f}",
            f"{one.memory_mb:.0f}",
            f"{one.growth_mb:+.1f}",
        )
    return Group(head, Text(about, "dim"), table)


def _shown(values: Spread) -> str:
    return f"{values.median:.2f} ({values.low:.2f}-{values.high:.2f})"
