"""What `lab soak` prints: the card, and the outcome as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.measure.bench.result import Metric, outcome
from tests.lab.soak.run import memory_growth
from tests.lab.soak.settings import GROWTH_MINUTES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tests.lab.soak.connection import Address
    from tests.lab.soak.finding import Finding
    from tests.lab.soak.run import SoakReport
    from tests.lab.soak.settings import SoakBench
    from tests.lab.soak.wires import SoakTarget

SHOWN_BREACHES = 12
SHOWN_OUTCOMES = 6
"""Most kinds of answers of a wire in the card; the JSON has all."""
_LATENCIES = ("ttft_p50", "ttft_p99", "gap_p50", "gap_p99")


def as_outcome(report: SoakReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    metrics = {f"beside the load: {name} ms": Metric(1000 * report.beside[name], "lower") for name in report.beside}
    if report.late_memory is not None:
        metrics["memory MB"] = Metric(report.late_memory / 1e6, "lower")
    details = {
        "url": report.address.url,
        "wires": list(report.target.wires),
        "model": report.target.model,
        "settings": asdict(report.bench),
        "seconds": report.seconds,
        "interrupted": report.interrupted,
        "sent": {part: report.tally.sent(part) for part in report.bench.parts},
        "answers": [[*key, number] for key, number in sorted(report.tally.outcomes.items())],
        "good_streams": {"ended": report.streams, "equal": report.equal},
        "quiet_s": dict(report.quiet),
        "beside_s": dict(report.beside),
        "memory_bytes": {"early": report.early_memory, "late": report.late_memory},
        "cpu_s": report.cpu_seconds,
        "before": asdict(report.before),
        "after": asdict(report.after),
        "notes": report.notes,
        "breaches": report.breaches,
    }
    return outcome("soak", details, metrics)


def soak_card(report: SoakReport) -> Group:
    """The report for a terminal."""
    head = Text(f"{report.target.model or 'a server'} at {report.address.url}", "bold")
    ended = " (ended early)" if report.interrupted else ""
    lasted = Text(f"{report.seconds / 60:.1f} min{ended} over {', '.join(report.target.wires)}", "dim")
    parts: list[RenderableType] = [head, lasted, _sent(report), _streams(report), _held(report)]
    parts += [Text(note, "yellow") for note in report.notes]
    parts += _judged(report.breaches)
    return Group(*parts)


def finding_outcome(finding: Finding, bench: SoakBench, address: Address, target: SoakTarget) -> dict[str, Any]:
    """What a scenario has found as `result.outcome` has it."""
    metrics = {
        name: Metric(value, "higher" if name == "served" else "lower")
        for name, value in finding.figures.items()
        if isinstance(value, int | float) and name not in {"streams", "memory_before", "quiet_difference_s"}
    }
    details = {
        "url": address.url,
        "model": target.model,
        "settings": asdict(bench),
        "seconds": finding.seconds,
        "figures": finding.figures,
        "breaches": finding.breaches,
    }
    return outcome("soak", details, metrics)


def finding_card(finding: Finding, address: Address, target: SoakTarget) -> Group:
    """What a scenario has found, for a terminal: each figure beside its bar."""
    table = _table(finding.title, "measured", "expected")
    for row in finding.rows:
        table.add_row(*row)
    head = Text(f"{target.model or 'a server'} at {address.url}", "bold")
    return Group(head, table, *_judged(finding.breaches))


def _sent(report: SoakReport) -> Table:
    """What was sent, and how it was answered."""
    table = _table("sent", "", "number", "answers")
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (part, wire, ending), number in report.tally.outcomes.items():
        counts[part, wire][ending] += number
    for (part, wire), endings in sorted(counts.items()):
        common = endings.most_common(SHOWN_OUTCOMES)
        words = [f"{ending} {number:,}" for ending, number in common]
        words += ["..."] if len(endings) > len(common) else []
        table.add_row(part, wire, f"{sum(endings.values()):,}", Text(", ".join(words)))
    return table


def _streams(report: SoakReport) -> Table:
    """The good streams, alone and beside the load."""
    table = _table("good streams", "ended", "equal", "ttft ms p50/p99", "gap ms p50/p99")
    table.add_row("alone", "", "", *_times(report.quiet))
    table.add_row("beside the load", f"{report.streams:,}", f"{report.equal:,}", *_times(report.beside))
    return table


def _times(figures: Any) -> list[str]:  # a mapping of numbers
    if not all(name in figures for name in _LATENCIES):
        return ["-", "-"]
    values = [1000 * figures[name] for name in _LATENCIES]
    return [f"{values[0]:.1f}/{values[1]:.1f}", f"{values[2]:.1f}/{values[3]:.1f}"]


def _held(report: SoakReport) -> RenderableType:
    """Memory, descriptors and what is open."""
    table = _table("held by the server", "before", "after")
    before, after = report.before, report.after
    if report.process is None:
        table.add_row("memory, descriptors", "not known", "no local process; --pid N")
    else:
        early, late, growth = report.early_memory, report.late_memory, memory_growth(report)
        judged = "" if report.seconds >= 60 * GROWTH_MINUTES else f", judged from {GROWTH_MINUTES:g} min on"
        grown = "" if growth is None else f"  ({growth:+.1%}{judged})"
        table.add_row("memory at 10 % and at the end", _megabytes(early), _megabytes(late) + grown)
        for name in ("descriptors", "threads", "processes"):
            table.add_row(name, str(getattr(before, name)), str(getattr(after, name)))
        if report.cpu_seconds is not None and report.seconds:
            table.add_row("CPU, in cores", "", f"{report.cpu_seconds / report.seconds:.2f}")
    for name in sorted({*before.open, *after.open}):
        table.add_row(name, f"{before.open.get(name, 0):g}", f"{after.open.get(name, 0):g}")
    return table


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.0f} MB"


def _judged(breaches: list[str]) -> list[RenderableType]:
    if not breaches:
        return [Text("no breach", "green")]
    shown = [Text(f"  {one}", "red") for one in breaches[:SHOWN_BREACHES]]
    more = len(breaches) - len(shown)
    rest = [Text(f"  and {more} more, in the JSON line", "red")] if more > 0 else []
    return [Text(f"{len(breaches)} breaches:" if len(breaches) > 1 else "1 breach:", "bold red"), *shown, *rest]


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if not number or title in {"answers", ""} else "right")
    return table
