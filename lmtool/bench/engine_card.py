"""The card of `bench engine`: one table a batch size, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lmtool.bench.contest import Standing
    from lmtool.bench.engine_report import EngineReport
    from lmtool.bench.statistics import Spread

NARROW = 84
"""Columns below which the least important columns are left out."""


def engine_card(report: EngineReport, columns: int) -> Group:
    """Everything that a person wants to know, for a terminal of so many columns."""
    bench = report.bench
    weights = report.checkpoint.parameters
    size = f"{weights / 1e6:.0f} M" if weights >= 1e6 else f"{weights / 1e3:.0f} K"
    head = f"{report.model_name} · {size} weights · {bench.threads} thread{'s' * (bench.threads > 1)}"
    products = ", ".join(f"{dtype} {rate / 1e9:.0f} G/s" for dtype, rate in report.products.items())
    about = report.abouts.get(report.ours, {})
    ours = f"{report.ours} by {about['kernels']} · " if about.get("kernels") else ""
    machine = f"{ours}memory {report.bandwidth / 1e9:.1f} GB/s · products {products}"
    parts: list[Text | Table] = [Text(head, "bold"), Text(machine, "dim")]
    for batch in bench.batch:
        parts += [Text(), _title(report, batch), _table(report, batch, narrow=columns < NARROW)]
    notes = [f"{name}: {reason}" for name, reason in report.failures.items()]
    notes += [
        f"{name}: ids differ from transformers float32, its numbers do not count"
        for name in report.agreements
        if not report.counts(name)
    ]
    return Group(*parts, *(Text(note, "yellow") for note in notes))


def _title(report: EngineReport, batch: int) -> Text:
    rounds = report.rounds.get(batch, [])
    disturbed = sum(not one.steady for one in rounds)
    lost = f", {disturbed} disturbed left out" if disturbed else ""
    bench = report.bench
    shape = f"{bench.prompt_len} in, {bench.output_len} out"
    return Text(f"batch {batch}  ({shape}; {len(rounds) - disturbed} rounds{lost})")


def _table(report: EngineReport, batch: int, *, narrow: bool) -> Table | Text:
    standings = report.standings(batch)
    if not standings:
        return Text("every round was disturbed; measure again when the machine is quiet", "yellow")
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for title in (
        "decode tok/s",
        "of limit",
        "ours ÷ it",
        *(() if narrow else ("per CPU-s", "ours ÷ it", "prefill")),
        "ids",
    ):
        table.add_column(title, justify="right")
    for name, standing in standings.items():
        table.add_row(*_row(report, batch, name, standing, narrow=narrow), style=None if report.counts(name) else "dim")
    return table


def _row(report: EngineReport, batch: int, name: str, standing: Standing, *, narrow: bool) -> list[str]:
    share = standing.decode.median / report.limit(name, batch)
    found = report.agreements[name]
    verdict = f"{found.checked}/{found.of}" if found.holds else "differ" if found.wrong else "unchecked"
    row = [name, f"{standing.decode.median:.1f}", f"{share:.0%}", ratio(standing.ratios.get("decode"))]
    if not narrow:
        cpu = ratio(standing.ratios.get("decode_cpu"))
        row += [f"{standing.decode_cpu.median:.1f}", cpu, f"{standing.prefill.median:.0f}"]
    return [*row, verdict]


def ratio(found: Spread | None) -> str:
    """`1.93 (1.88-1.97)`, or nothing."""
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})" if found is not None else ""
