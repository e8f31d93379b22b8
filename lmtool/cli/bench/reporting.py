"""How a benchmark ends: its card, what `--compare` found, `--save`, and one JSON line last."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmtool.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

    from lmtool.bench.result import Metric

_END = "Outcome"
JsonOnly = Annotated[bool, typer.Option("--json", help="Print the JSON line only.", rich_help_panel=_END)]
Save = Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the outcome there.", rich_help_panel=_END)]
Compare = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Status 1 when worse than this outcome.", rich_help_panel=_END)
]
Tolerance = Annotated[
    float, typer.Option(min=0, metavar="SHARE", help="How much worse still passes.", rich_help_panel=_END)
]

NO_END = 120
"""Columns where no terminal says how many it has."""


def numbers(text: str, name: str) -> tuple[int, ...]:
    """`1,8,32` as numbers. Raises `UsageError` that names the option."""
    from lmtool.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 1_000_000 for part in parts):
        raise UsageError(f"{name} {text!r} is no list of numbers from 1 on", f"such as {name} 1,8,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


def earlier(compare: Path | None, kind: str) -> dict[str, Metric]:
    """What to compare with; read before anything is measured. Raises `FileError`."""
    from lmtool.bench.result import read

    return read(compare, kind) if compare is not None else {}


def finish(
    out: Output,
    card: Callable[[int], RenderableType],
    result: Mapping[str, Any],
    before: Mapping[str, Metric],
    *,
    json_only: bool,
    save: Path | None,
    tolerance: float,
) -> None:
    """Print and keep a benchmark's outcome. Ends with status 1 when it is worse than before beyond the tolerance."""
    from lmtool.bench.result import Metric, changes
    from lmtool.bench.result import save as keep

    if save is not None:
        keep(save, result)
    now = {name: Metric(entry["value"], entry["better"]) for name, entry in result["metrics"].items()}
    compared = changes(before, now, tolerance)
    if not json_only:
        show(out, card)
        for change in compared:
            sign = "worse" if change.worse else "as good"
            out.line(f"{sign}: {change.name} {change.before:.4g} → {change.now:.4g}")
    told = dict(result)
    if before:
        told["compared"] = [
            {"name": one.name, "before": one.before, "now": one.now, "worse": one.worse} for one in compared
        ]
    out.line(json.dumps(told, ensure_ascii=False))
    if before and not compared:
        from lmtool.errors import UsageError

        raise UsageError("the two runs have no number in common", "compare with a run of the same settings")
    if any(one.worse for one in compared):
        raise typer.Exit(1)


def show(out: Output, card: Callable[[int], RenderableType]) -> None:
    """Print a card as wide as the terminal is."""
    from rich.console import Console

    columns = shutil.get_terminal_size((NO_END, 24)).columns
    console = Console(
        file=sys.stdout, width=columns, no_color=not out.color, force_terminal=out.color, highlight=False, emoji=False
    )
    console.print(card(columns))
