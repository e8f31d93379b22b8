"""`lmtool bench inspect`: whether the inspector keeps up, and how it feels meanwhile."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.bench.reporting import Compare, JsonOnly, Save, Tolerance
from lmtool.cli.invocation import Common

LOAD = "Load"


def inspect(
    common: Common,
    rate: Annotated[
        float, typer.Option(min=64, metavar="N", help="Tokens a second that are offered.", rich_help_panel=LOAD)
    ] = 50_000.0,
    streams: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="That they belong to.", rich_help_panel=LOAD)
    ] = 64,
    seconds: Annotated[float, typer.Option(min=0.5, metavar="S", help="How long.", rich_help_panel=LOAD)] = 10.0,
    tokens: Annotated[
        int, typer.Option(min=64, metavar="N", help="In the trace that is opened.", rich_help_panel=LOAD)
    ] = 1_000_000,
    size: Annotated[str, typer.Option(metavar="WxH", help="Of the terminal.", rich_help_panel=LOAD)] = "160x45",
    seed: Annotated[int, typer.Option(metavar="N", help="Of the tokens.", rich_help_panel=LOAD)] = 0,
    json_only: JsonOnly = False,
    save: Save = None,
    compare: Compare = None,
    tolerance: Tolerance = 0.3,
) -> None:
    """Show the inspector many streams in a real pseudo-terminal, then a long trace; time its keys, count its CPU.

    Key times are those from the press to the end of what the key does.
    """
    from lmtool.bench.inspect_card import inspect_card
    from lmtool.bench.inspect_run import InspectBench, as_outcome, run
    from lmtool.cli.bench.reporting import earlier, finish
    from lmtool.cli.output import Output
    from lmtool.tui.snapshot import size_of

    out = Output.of(common)
    before = earlier(compare, "inspect")
    columns, rows = size_of(size)
    report = run(InspectBench(rate, streams, seconds, tokens, columns, rows, seed), out.note)
    finish(
        out,
        lambda width: inspect_card(report, width),
        as_outcome(report),
        before,
        json_only=json_only,
        save=save,
        tolerance=tolerance,
    )
