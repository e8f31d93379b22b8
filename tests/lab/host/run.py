"""Runs `lab host`: the engine's own time a step, beside that of another version of lmtool; and its card."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.core.errors import ResourceError, UsageError
from lmtool.measure.bench.peer_process import PeerProcess
from lmtool.measure.bench.record import spread
from lmtool.measure.bench.result import Metric, outcome
from tests.lab.host import worker as host_worker
from tests.lab.host.worker import GRAPHS, PAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.measure.bench.record import Spread

SAMPLING = tuple(host_worker.SAMPLING)
RUNNERS = ("cpu", PAGED, GRAPHS)
OWN_FOLDER = Path(host_worker.__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class HostBench:
    """Settings of one run. Fields match the flags of `lab host`."""

    streams: tuple[int, ...] = (1, 64, 256)
    sampling: tuple[str, ...] = SAMPLING
    runners: tuple[str, ...] = RUNNERS
    context: int = 128
    steps: int = 100
    """Timed in each measurement; for few streams more, see `steps_of`."""
    rounds: int = 5
    against: str | None = None
    """Folder of another version."""
    timeout: float = 120.0

    def steps_of(self, streams: int) -> int:
        """Steps to time: a step of few streams is short."""
        return max(self.steps, 4 * self.steps // streams)


class Case(NamedTuple):
    """What is measured."""

    runner: str
    sampling: str
    streams: int

    def __str__(self) -> str:
        return f"{self.runner} {self.sampling} x{self.streams}"


@dataclass(slots=True)
class Times:
    """Microseconds a step, a number a round."""

    now: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    """Of the other version."""

    @property
    def ratio(self) -> Spread | None:
        """Our time over the other version's, round by round; None without one."""
        if not self.before:
            return None
        return spread([own / other for own, other in zip(self.now, self.before, strict=True)])


@dataclass(slots=True)
class HostReport:
    """The results of one run."""

    bench: HostBench
    abouts: dict[str, dict[str, Any]]
    """What each version says of itself: `now`, and `before`."""
    times: dict[Case, Times] = field(default_factory=dict)


async def run(bench: HostBench, note: Callable[[str], None]) -> HostReport:
    """Measure everything, round by round, each case with both versions right after each other, by turns first.

    note: called with each line of progress. Raises `UsageError` for a folder without lmtool, `ResourceError` where a
    version cannot be measured, `ConnectError` or `TimeLimitError`.
    """
    folders = {"now": OWN_FOLDER} | ({} if bench.against is None else {"before": checkout(bench.against)})
    async with contextlib.AsyncExitStack() as stack:
        versions = {}
        for name, folder in folders.items():
            words = [sys.executable, "-P", host_worker.__file__, str(folder)]
            worker = PeerProcess("host", sys.executable, {"threads": 1}, words)
            versions[name] = process = await stack.enter_async_context(worker)
            await process.start(bench.timeout)
            if process.about["folder"] != str(folder):
                raise ResourceError(
                    f"Python imports lmtool from {process.about['folder']}, not from {folder}",
                    "check what sitecustomize and .pth files put in front",
                )
        report = HostReport(bench, {name: process.about for name, process in versions.items()})
        cases = _cases(bench, report.abouts["now"], note)
        for turn in range(bench.rounds + 1):
            note(f"round {turn} of {bench.rounds}" if turn else "warming up")
            for case in cases:
                await _measure(report, versions, case, turn)
    return report


def checkout(folder: str) -> Path:
    """The folder, made absolute. Raises `UsageError` where it holds no lmtool."""
    path = Path(folder).resolve()
    if not (path / "lmtool/inference/engine/engine.py").is_file():
        raise UsageError(
            f"--against: {folder} holds no lmtool/inference/engine",
            "name the root of another checkout, such as one of `git worktree add ../before COMMIT`",
        )
    return path


def _cases(bench: HostBench, about: Mapping[str, Any], note: Callable[[str], None]) -> list[Case]:
    """All that can be measured here. Raises `ResourceError` where that is nothing."""
    runners = [runner for runner in bench.runners if runner not in {PAGED, GRAPHS} or about["triton"]]
    missing = " and ".join(runner for runner in bench.runners if runner not in runners)
    if not runners:
        raise ResourceError(f"--runner {missing.replace(' and ', ',')}: Triton is not installed", "pip install triton")
    if missing:
        note(f"{missing}: left out, Triton is not installed")
    return [
        Case(runner, sampling, streams)
        for runner in runners
        for streams in bench.streams
        for sampling in bench.sampling
    ]


async def _measure(report: HostReport, versions: dict[str, PeerProcess], case: Case, turn: int) -> None:
    """One round of a case, kept but for the first, in which both warm up. A version without its runner is left out."""
    bench = report.bench
    for name in list(versions) if turn % 2 else reversed(versions):
        if case.runner == GRAPHS and not versions[name].about["graphs"]:
            continue
        answer = await versions[name].call(
            bench.timeout,
            "measure",
            **case._asdict(),
            context=bench.context,
            steps=bench.steps_of(case.streams) if turn else 8,
        )
        if turn:
            getattr(report.times.setdefault(case, Times()), name).append(answer["us"])


def as_outcome(report: HostReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    rows: list[dict[str, Any]] = []
    metrics = {}
    for case, times in report.times.items():
        now, ratio = spread(times.now), times.ratio
        row = {**case._asdict(), "us": asdict(now), "us_per_token": now.median / case.streams}
        metrics[f"{case}: us"] = Metric(now.median, "lower")
        if ratio is not None:
            row |= {"us_before": asdict(spread(times.before)), "over_before": asdict(ratio)}
            metrics[f"{case}: over_before"] = Metric(ratio.median, "lower")
        rows.append(row)
    return outcome("host", {"settings": asdict(report.bench), "versions": report.abouts, "results": rows}, metrics)


_WIDE = 80
"""Columns of a terminal that has room for the spread."""


def host_card(report: HostReport, columns: int) -> Group:
    """The report for a terminal, without the spread where that is narrow."""
    bench, own = report.bench, report.abouts["now"]
    head = f"the engine's own time, without a forward pass · prompts of {bench.context} tokens"
    versions = f"lmtool {own['lmtool']} · Python {own['python']} · torch {own['torch']}"
    if bench.against is not None:
        versions += f" · before: {bench.against}"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    spreads = ("low", "high") if columns >= _WIDE else ()
    for title in ("", "sampling", "streams", "µs a step", *spreads, "µs a token", "÷ before", *spreads):
        table.add_column(title, justify="left" if title in {"", "sampling"} else "right", no_wrap=True)
    for case, times in report.times.items():
        now, ratio = spread(times.now), times.ratio
        ratios = ["", "", ""] if ratio is None else [f"{part:.2f}" for part in (ratio.median, ratio.low, ratio.high)]
        shown = 1 + len(spreads)
        table.add_row(
            case.runner,
            case.sampling,
            str(case.streams),
            *[f"{part:,.0f}" for part in (now.median, now.low, now.high)][:shown],
            f"{now.median / case.streams:.1f}",
            *ratios[:shown],
        )
    return Group(Text(head, "bold"), Text(versions, "dim"), Text(), table)
