"""The card of `bench inspect`: what was asked of the inspector and what it did, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lmtool.bench.inspect_run import InspectReport

GOALS = {"key_ms_p50": 10.0, "key_ms_p95": 50.0, "cpu_share": 0.5, "open_s": 2.0, "rss_mb": 300.0}
"""What the inspector is meant to keep."""


def inspect_card(report: InspectReport, columns: int) -> Group:
    """Everything that a person wants to know, for a terminal of so many columns."""
    bench, live, file = report.bench, report.live, report.file
    table = Table(box=None, pad_edge=False, padding=(0, 2 if columns >= 60 else 1))
    table.add_column("", no_wrap=True)
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("meant", justify="right", no_wrap=True)
    table.add_row(Text(f"{bench.rate:,.0f} tokens/s, {bench.streams} streams", "bold"))
    table.add_row("tokens shown a second", f"{live['shown_per_s']:,.0f}", "all")
    table.add_row("share of a core", *_beside(live["cpu_share"], "cpu_share", ".2f"))
    table.add_row("  with 20 keys a second", f"{live['cpu_share_keys']:.2f}", "")
    _keys(table, live)
    table.add_row(Text(f"a trace of {file['tokens']:,.0f} tokens", "bold"))
    table.add_row("seconds until it is all there", *_beside(file["open_s"], "open_s", ".2f"))
    table.add_row("seconds of CPU, start included", f"{file['open_cpu_s']:.2f}", "")
    table.add_row("memory, MB", *_beside(file["rss_mb"], "rss_mb", ".0f"))
    _keys(table, file)
    return Group(table)


def _keys(table: Table, found: dict[str, float]) -> None:
    table.add_row("key delay, ms    p50", *_beside(found["key_ms_p50"], "key_ms_p50", ".1f"))
    table.add_row("                 p95", *_beside(found["key_ms_p95"], "key_ms_p95", ".1f"))
    table.add_row("                 max", f"{found['key_ms_max']:.1f}", "")


def _beside(value: float, name: str, form: str) -> tuple[Text, str]:
    goal = GOALS[name]
    return Text(f"{value:{form}}", "" if value <= goal else "yellow"), f"≤ {goal:g}"
