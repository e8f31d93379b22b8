"""Runs `lab kernels`: our matrix products beside torch's, format by format; and its card."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.measure.bench.peer_process import PeerProcess
from lmtool.measure.bench.record import percentile
from lmtool.measure.bench.result import Metric, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("float32", "bfloat16", "int8", "int4")
WAYS = ("ours", "torch")


@dataclass(frozen=True, slots=True)
class KernelsBench:
    """Settings of one run. Fields match the flags of `lab kernels`."""

    out: int = 3072
    inputs: int = 768
    """The weights are [out, inputs]."""
    formats: tuple[str, ...] = FORMATS
    rows: tuple[int, ...] = (1, 8, 32, 256)
    rounds: int = 5
    seconds: float = 0.1
    """Of each measurement in a round."""
    threads: int = 1
    timeout: float = 600.0


@dataclass(slots=True)
class Timings:
    """A product in one format with one number of rows: seconds, a number a round."""

    ours: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as torch's, the median of the rounds; None where torch has no such product."""
        if not self.torch:
            return None
        return percentile([theirs / own for theirs, own in zip(self.torch, self.ours, strict=True)], 50)


@dataclass(slots=True)
class KernelsReport:
    """The results of one run."""

    bench: KernelsBench
    about: dict[str, Any]
    bandwidth: float
    """Bytes per second."""
    ceilings: dict[str, float]
    """Operations per second in registers alone, by format, one thread."""
    weight_bytes: dict[str, int] = field(default_factory=dict)
    timings: dict[tuple[str, int], Timings] = field(default_factory=dict)

    def speed(self, kind: str, rows: int) -> dict[str, float]:
        """Of our product: operations and weight bytes per second, and their shares of what is possible."""
        bench, timings = self.bench, self.timings[kind, rows]
        seconds = percentile(timings.ours, 50)
        operations, read = 2 * bench.out * bench.inputs * rows / seconds, self.weight_bytes[kind] / seconds
        return {
            "us": 1e6 * seconds,
            "op_per_s": operations,
            "of_ceiling": operations / self.ceilings[kind] / bench.threads,
            "bytes_per_s": read,
            "of_bandwidth": read / self.bandwidth,
        }


async def run(bench: KernelsBench, note: Callable[[str], None]) -> KernelsReport:
    """Measure everything. note: called with each line of progress.

    Raises `ResourceError` without C kernels, `ConnectError` or `TimeLimitError`.
    """
    settings = {"threads": bench.threads, "out": bench.out, "in": bench.inputs}
    async with PeerProcess("kernels", sys.executable, settings) as peer:
        await peer.start(bench.timeout)
        bandwidth = (await peer.call(bench.timeout, "bandwidth"))["bytes_per_s"]
        ceilings = {
            kind: float((await peer.call(bench.timeout, "ceiling", kind=kind))["op_per_s"]) for kind in bench.formats
        }
        report = KernelsReport(bench, peer.about, bandwidth, ceilings)
        for kind in bench.formats:
            note(f"measuring {kind}")
            for turn in range(bench.rounds):
                for rows in bench.rows:
                    await _measure(report, peer, kind, rows, turn)
    return report


async def _measure(report: KernelsReport, peer: PeerProcess, kind: str, rows: int, turn: int) -> None:
    """One round of a product: ours and torch's right after each other, by turns first."""
    timings = report.timings.setdefault((kind, rows), Timings())
    for way in WAYS if turn % 2 else WAYS[::-1]:
        answer = await peer.call(
            report.bench.timeout, "product", kind=kind, way=way, rows=rows, seconds=report.bench.seconds
        )
        report.weight_bytes[kind] = answer["bytes"]
        if answer["seconds"] is not None:
            getattr(timings, way).append(answer["seconds"])


def as_outcome(report: KernelsReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    rows: list[dict[str, Any]] = []
    metrics = {}
    for (kind, count), timings in report.timings.items():
        speed, ratio = report.speed(kind, count), timings.ratio
        rows.append({"format": kind, "rows": count, **speed, "over_torch": ratio})
        metrics[f"{kind} x{count}: op_per_s"] = Metric(speed["op_per_s"], "higher")
        if ratio is not None:
            metrics[f"{kind} x{count}: over_torch"] = Metric(ratio, "higher")
    details = {
        "settings": asdict(report.bench),
        **report.about,
        "bandwidth_bytes_per_s": report.bandwidth,
        "ceiling_op_per_s": report.ceilings,
        "results": rows,
    }
    return outcome("kernels", details, metrics)


def kernels_card(report: KernelsReport, _columns: int) -> Group:
    """The report for a terminal."""
    bench = report.bench
    head = f"[{bench.out}, {bench.inputs}] · {bench.threads} thread{'s' * (bench.threads > 1)}"
    ceilings = ", ".join(f"{kind} {rate / 1e9:.0f} G/s" for kind, rate in report.ceilings.items())
    machine = f"{report.about['kernels']} · memory {report.bandwidth / 1e9:.1f} GB/s · in registers {ceilings}"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for title in ("", "rows", "µs", "G op/s", "of ceiling", "GB/s", "of memory", "÷ torch"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for (kind, rows), timings in report.timings.items():
        speed, ratio = report.speed(kind, rows), timings.ratio
        table.add_row(
            kind,
            str(rows),
            f"{speed['us']:.0f}",
            f"{speed['op_per_s'] / 1e9:.0f}",
            f"{speed['of_ceiling']:.0%}",
            f"{speed['bytes_per_s'] / 1e9:.1f}",
            f"{speed['of_bandwidth']:.0%}",
            "" if ratio is None else f"{ratio:.2f}",
        )
    return Group(Text(head, "bold"), Text(machine, "dim"), Text(), table)
