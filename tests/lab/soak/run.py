"""Runs the mixed load of `lab soak`: good streams alone, then beside the load, then alone again; what broke."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.core.errors import ServerError
from lmtool.measure.bench.record import percentile
from lmtool.serving.model_names import parse_bytes
from tests.lab.soak.good_streams import GoodStreams
from tests.lab.soak.settings import GROWTH_MINUTES
from tests.lab.soak.tally import Tally
from tests.lab.soak.watch import ServerState, Watch, leaks
from tests.lab.soak.worker import Load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from lmtool.measure.bench.record import Record
    from tests.lab.soak.connection import Address
    from tests.lab.soak.settings import SoakBench
    from tests.lab.soak.wires import SoakTarget

QUIET_RUNS = 3
"""Of all good streams before the load: the first is their reference."""
WARM_SHARE = 0.05
"""Of the duration: a load before the first look at what the server holds, which starts what it keeps."""
WARM_SECONDS = (1.0, 5.0)
"""Of one such load, at least and at most."""
MOST_WARM_UPS = 5
WARM_SETTLE_SECONDS = 10.0
"""How long a server is waited for behind each: what it keeps for a minute may stay."""
SAMPLE_SECONDS = 1.0
_LARGEST_LINE = 16 << 20


@dataclass
class SoakReport:
    """What a run has found."""

    bench: SoakBench
    address: Address
    target: SoakTarget
    process: int | None
    seconds: float = 0.0
    """How long the load ran."""
    interrupted: bool = False
    tally: Tally = field(default_factory=Tally)
    quiet: Mapping[str, float] = field(default_factory=dict)
    """Times of the good streams without the load, in seconds: `ttft_p50`, `ttft_p99`, `gap_p50`, `gap_p99`."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """The same beside it."""
    streams: int = 0
    """Good streams that ended beside the load, or after it."""
    equal: int = 0
    """Those that were the same as their first run."""
    notes: list[str] = field(default_factory=list)
    before: ServerState = field(default_factory=ServerState)
    after: ServerState = field(default_factory=ServerState)
    early_memory: int | None = None
    """Resident bytes at 10 % of the time."""
    late_memory: int | None = None
    """And at its end."""
    cpu_seconds: float | None = None
    breaches: list[str] = field(default_factory=list)


async def run(
    bench: SoakBench,
    address: Address,
    target: SoakTarget,
    process: int | None,
    note: Callable[[str], None],
    show: Callable[[str], None],
    stop: asyncio.Event,
) -> SoakReport:
    """Run everything. note: a line about what begins. show: a line in place of the one before. stop: ends it early.

    Raises `ServerError` where a good stream fails on the quiet server.
    """
    report = SoakReport(bench, address, target, process)
    watch = Watch(address, process)
    good = GoodStreams(address, target, bench.good, bench.output_len)
    try:
        note(f"{bench.good} good streams alone, {QUIET_RUNS} times")
        await _quiet_runs(report, good)
        note(f"warming up, then {bench.minutes:g} min of {', '.join(bench.parts)}")
        await good.close()
        report.before = await _warm_up(report, watch, stop)
        if not report.before.open:
            report.notes.append("/metrics tells nothing: whether streams and connections stay open is not judged")
        await _beside_load(report, watch, good, show, stop)
        note("good streams alone again")
        await good.once()
    finally:
        await good.close()
    report.equal = sum(each.equal for each in good.streams)
    report.streams = report.equal + len(good.breaches)
    report.after = await watch.settled(report.before)
    report.breaches += _breaches(report, good)
    return report


async def _quiet_runs(report: SoakReport, good: GoodStreams) -> None:
    for number in range(QUIET_RUNS):
        await good.once()
        if good.failures:
            raise ServerError(f"the server is not ready for a load: {good.failures[0]}", "try it:  lmtool chat")
        if number == 0:
            good.take()  # what is loaded or compiled once is no part of the comparison
    report.notes += good.settle()
    report.quiet = times(good.take())
    for each in good.streams:
        each.equal = 0


async def _warm_up(report: SoakReport, watch: Watch, stop: asyncio.Event) -> ServerState:
    """Short loads whose breaches count and whose times do not, until what the server holds behind them is the same.

    They start what it keeps, such as helper processes; one that leaks holds more after each.
    """
    low, high = WARM_SECONDS
    state = await watch.state()
    for number in range(MOST_WARM_UPS):
        tally = Tally()
        async with _loading(report, report.bench.seed + 1 + number, tally) as loading:
            await _until(max(low, min(high, WARM_SHARE * report.bench.seconds)), stop, loading, sent=tally)
        report.breaches += tally.breaches
        before, state = state, await watch.settled(state, WARM_SETTLE_SECONDS)
        if stop.is_set() or not leaks(before, state):
            break
    return state


async def _beside_load(
    report: SoakReport, watch: Watch, good: GoodStreams, show: Callable[[str], None], stop: asyncio.Event
) -> None:
    began, used = time.monotonic(), watch.cpu_seconds()
    good.take()
    running = asyncio.create_task(good.endless())
    watch.begin()
    showing = asyncio.create_task(_show(report, watch, good, show, began))
    try:
        async with _loading(report, report.bench.seed, report.tally) as loading:
            await _until(report.bench.seconds, stop, loading, running, showing, sent=report.tally)
        report.interrupted = stop.is_set()
    finally:
        for task in (running, showing):
            task.cancel()
        await asyncio.gather(running, showing, return_exceptions=True)
    watch.sample()  # of the end, however late the one before came
    report.seconds = time.monotonic() - began
    report.early_memory = watch.memory_at(0.1, report.seconds)
    report.late_memory = watch.memory_at(1.0, report.seconds)
    now = watch.cpu_seconds()
    report.cpu_seconds = None if None in (used, now) else now - used  # type: ignore[operator]  # both are known
    report.beside = times(good.take())


async def _show(report: SoakReport, watch: Watch, good: GoodStreams, show: Callable[[str], None], began: float) -> None:
    """Sample memory and show how far the load is."""
    while True:
        memory, passed = watch.sample(), time.monotonic() - began
        sent = {part: report.tally.sent(part) for part in report.bench.parts}
        parts = [f"{int(passed) // 60}:{int(passed) % 60:02} of {report.bench.minutes:g} min"]
        parts += [f"{part} {count:,}" for part, count in sent.items()]
        parts.append(f"good {sum(each.equal for each in good.streams)}")
        if memory is not None:
            parts.append(f"{memory / 1e6:.0f} MB")
        if wrong := len(good.breaches) + len(report.tally.breaches):
            parts.append(f"breaches {wrong}")
        show(" · ".join(parts))
        await asyncio.sleep(SAMPLE_SECONDS)


async def _until(seconds: float, stop: asyncio.Event, *tasks: asyncio.Task[None], sent: Tally | None = None) -> None:
    """Wait so long, or for the stop, or for the first of the tasks, whose exception is raised.

    sent: the time begins when this counts something.
    """
    stopping = asyncio.create_task(stop.wait())
    try:
        while not _begun(sent) and not any(task.done() for task in (stopping, *tasks)):  # a tally comes twice a second
            await asyncio.sleep(0.1)
        done, _ = await asyncio.wait((stopping, *tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    for task in done & set(tasks):
        task.result()


def _begun(tally: Tally | None) -> bool:
    """True if something was counted, where that is wanted."""
    return tally is None or bool(tally.outcomes)


@contextlib.asynccontextmanager
async def _loading(report: SoakReport, seed: int, tally: Tally) -> AsyncIterator[asyncio.Task[None]]:
    """The loading process while the block runs; a task that is done once the load has ended by itself."""
    bench = report.bench
    load = Load(report.address, report.target, bench.places, seed, bench.timeout, bench.frames)
    words = (sys.executable, "-m", "tests.lab.soak.worker")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=_LARGEST_LINE)
    assert process.stdin is not None
    assert process.stdout is not None
    reading = asyncio.create_task(_read(process.stdout, tally))
    try:
        process.stdin.write(load.as_line())
        await process.stdin.drain()
        yield reading
        process.stdin.close()
        await reading
        await process.wait()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(tallies: asyncio.StreamReader, tally: Tally) -> None:
    """Read tallies until the load is over. Raises `RuntimeError` where its process fails."""
    while line := await tallies.readline():
        value = json.loads(line)
        tally.update(value)
        if value["over"]:
            return
    raise RuntimeError("the loading process has ended by itself")


def times(records: Sequence[Record]) -> dict[str, float]:
    """Percentiles of the times of streams, in seconds."""
    series = {
        "ttft": [record.ttft for record in records if record.stamps],
        "gap": [gap for record in records for gap in record.gaps],
    }
    return {
        f"{name}_p{percent}": percentile(values, percent)
        for name, values in series.items()
        if values
        for percent in (50, 99)
    }


def _breaches(report: SoakReport, good: GoodStreams) -> list[str]:
    """A sentence for everything that may not be."""
    bench = report.bench
    found = [*good.breaches, *report.tally.breaches]
    if report.tally.further_breaches:
        found.append(f"and {report.tally.further_breaches} more of the load")
    found += [f"left open: {one}" for one in leaks(report.before, report.after)]
    if report.before.open and not report.after.open:
        found.append("/metrics tells nothing any more")
    growth = memory_growth(report)
    if growth is not None and growth > bench.max_growth and report.seconds >= 60 * GROWTH_MINUTES:
        found.append(f"memory grew by {growth:.1%} after 10 % of the time; at most {bench.max_growth:.1%}")
    if bench.max_rss is not None and report.late_memory is not None:
        most = parse_bytes(bench.max_rss, "--max-rss")
        if report.late_memory > most:
            found.append(f"memory is {report.late_memory / 1e6:.0f} MB at the end; at most {most / 1e6:.0f}")
    return found


def memory_growth(report: SoakReport) -> float | None:
    """The share by which memory grew from 10 % of the time to its end; None where it is not known."""
    if not report.early_memory or report.late_memory is None:
        return None
    return report.late_memory / report.early_memory - 1
