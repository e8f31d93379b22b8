"""The end of a benchmark: its card, the comparison of `--compare`, `--save`; on no terminal one JSON line last."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmtool.settings.option import option
from lmtool.settings.terminal import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from lmtool.measure.bench.result import Change, Metric

_PANEL = "Outcome"
DEFAULT_COLUMNS = 120
"""Where there is no terminal."""


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """`1,8,32` as numbers. Raises `UsageError` that names the option."""
    from lmtool.core.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 1_000_000 for part in parts):
        raise UsageError(f"{name} {text!r} is no list of numbers from 1 on", f"such as {name} 1,8,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


@dataclass(frozen=True, slots=True)
class Report:
    """What to do with a benchmark's outcome."""

    json_only: bool = option(False, "Print the JSON line only; a pipe gets it behind the card.", _PANEL, flag="--json")
    save: Path | None = option(None, "Save the outcome as JSON.", _PANEL, metavar="FILE")
    compare: Path | None = option(None, "Status 1 when worse than this outcome.", _PANEL, metavar="FILE")
    tolerance: float = option(0.1, "How much worse still passes.", _PANEL, metavar="SHARE", minimum=0)

    def before(self, kind: str) -> Mapping[str, Metric]:
        """Metrics to compare with: read before anything is measured. Raises `FileError` for no outcome of this kind."""
        from lmtool.measure.bench.result import read

        return {} if self.compare is None else read(self.compare, kind)

    def finish(
        self,
        out: Output,
        card: Callable[[int], RenderableType],
        result: Mapping[str, Any],
        before: Mapping[str, Metric],
    ) -> None:
        """Print and save the outcome. Exits with status 1 when it is worse than before beyond the tolerance."""
        from lmtool.measure.bench.result import Metric, changes
        from lmtool.measure.bench.result import save as write

        if self.save is not None:
            write(self.save, result)
        now = {name: Metric(entry["value"], entry["better"]) for name, entry in result["metrics"].items()}
        compared = changes(before, now, self.tolerance)
        if not self.json_only:
            print_card(out, card)
            for change in compared:
                sign = "worse" if change.worse else "as good"
                out.line(f"{sign}: {change.name} {change.before:.4g} → {change.now:.4g}")
        if out.terminal and not self.json_only:  # a card is for people, and --save and --json are for programs
            _end(compared, before)
            return
        rows = [{"name": one.name, "before": one.before, "now": one.now, "worse": one.worse} for one in compared]
        out.line(json.dumps({**result, "compared": rows} if before else result, ensure_ascii=False))
        _end(compared, before)


def _end(compared: Sequence[Change], before: Mapping[str, Metric]) -> None:
    """Exit with status 1 where something got worse. Raises `UsageError` where nothing could be compared."""
    from lmtool.core.errors import UsageError

    if before and not compared:
        raise UsageError("the two runs have no figure in common", "compare with a run of the same settings")
    if any(one.worse for one in compared):
        raise typer.Exit(1)


def print_card(out: Output, card: Callable[[int], RenderableType]) -> None:
    """Print a card, as wide as the terminal. card: given the number of columns."""
    from rich.console import Console

    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
    console = Console(
        file=sys.stdout, width=columns, no_color=not out.color, force_terminal=out.color, highlight=False, emoji=False
    )
    console.print(card(columns))
