"""The card of `bench serve`: one row a phase, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lmtool.bench.serve_run import ServeReport

NARROW = 90
"""Columns below which the least important columns are left out."""


def serve_card(report: ServeReport, columns: int) -> Group:
    """Everything that a person wants to know, for a terminal of so many columns."""
    bench = report.bench
    shape = bench.shape
    head = Text(f"{report.server.model} at {report.server.url}", "bold")
    what = Text(f"{bench.scenario}: {shape.meaning}; {shape.prompt_len} in, {shape.output_len} out", "dim")
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    titles = ["ttft ms p50/p99", "itl ms p50/p99", "tok/s"]
    if columns >= NARROW:
        titles[1:2] = ["tpot ms p50", "itl ms p50/p99", "e2el ms p50/p99"]
        titles += ["goodput", "tok per CPU-s"]
    for title in titles:
        table.add_column(title, justify="right")
    for result in report.results:
        table.add_row(result["load"], *(_cell(result, title) for title in titles))
    failed = sum(result["failed"] for result in report.results)
    notes = [Text(f"{failed} requests failed and count nowhere", "yellow")] if failed else []
    return Group(head, what, table, *(_landing(result) for result in report.results), *_held(report.results), *notes)


def _cell(result: dict[str, Any], title: str) -> str:
    if title == "tok/s":
        return f"{result['output_throughput']:.1f}"
    if title == "goodput":
        return f"{result['goodput']:.1f}"
    if title == "tok per CPU-s":
        return f"{result['tokens_per_cpu_s']:.1f}" if "tokens_per_cpu_s" in result else "-"
    found = result.get(f"{title.split(maxsplit=1)[0]}_ms")
    if found is None:
        return "-"
    return "/".join(f"{found[name]:.1f}" for name in title.rsplit(maxsplit=1)[-1].split("/"))


def _held(results: list[dict[str, Any]]) -> list[Text]:
    told = []
    for result in results:
        if "held_over_free" in result:
            ratio, of_cpu = result["held_over_free"], result.get("held_over_free_cpu")
            beside = "" if of_cpu is None else f", {of_cpu['median']:.2f} times those of a second of CPU"
            told.append(
                Text(
                    f"{result['load']}: {ratio['median']:.2f} times the tokens a second of free ones "
                    f"({ratio['low']:.2f} to {ratio['high']:.2f}){beside}\n"
                    f"first token after {result['new_prompt_ttft_ms']:.0f} ms of a new prompt, "
                    f"{result['new_schema_ttft_ms']:.0f} of a new schema, {result['new_both_ttft_ms']:.0f} of both "
                    f"({result['both_over_longer']:.2f} times the longer one)"
                )
            )
    return told


def _landing(result: dict[str, Any]) -> Text:
    if "itl_p99_over_quiet" not in result:
        return Text("", end="")
    streams, long = result["itl_p99_over_quiet"], result["long_ttft_over_alone"]
    quiet, alone = result["quiet_itl_p99_ms"], result["long_ttft_alone_ms"]
    return Text(
        f"streams' itl p99: {streams:.2f} times the quiet one of {quiet:.1f} ms\n"
        f"long prompt's ttft: {long:.2f} times the {alone:.0f} ms alone"
    )
