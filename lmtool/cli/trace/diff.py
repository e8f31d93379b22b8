"""`lmtool trace diff`: two recordings of the same requests, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import TraceFile, read_exchanges
from lmtool.cli.trace.outcome import as_json as to_json
from lmtool.cli.trace.outcome import as_lines


def diff(
    common: Common,
    expected: TraceFile,
    actual: Annotated[Path, typer.Argument(metavar="OTHER", help="The trace to compare with it.")],
    level: Annotated[
        Literal["shape", "ids", "numbers"], typer.Option("--level", help="How much must be equal.")
    ] = "numbers",
    tol_logprob: Annotated[
        float, typer.Option("--tol-logprob", metavar="NATS", min=0, help="Log-probabilities this near are equal.")
    ] = 1e-3,
    tie_eps: Annotated[
        float, typer.Option("--tie-eps", metavar="NATS", min=0, help="Tokens this near may change places.")
    ] = 0.02,
    match: Annotated[
        Literal["exact", "prompt", "order"], typer.Option("--match", help="Which requests belong together.")
    ] = "exact",
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="FIELD", help="A field that may differ; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a request.")] = False,
) -> None:
    """Compare two traces stream by stream; status 1 where a check does not hold."""
    from lmtool.cli.output import Output
    from lmtool.trace.comparison import compare
    from lmtool.trace.diff import Tolerance

    out = Output.of(common)
    ours, theirs = read_exchanges(out, expected), read_exchanges(out, actual)
    made = compare(ours, theirs, level, Tolerance(tol_logprob, tie_eps), how=match, ignore=ignore or ())
    for one in made:
        out.line(to_json(one) if as_json else as_lines(one))
    failed = sum(one.verdict == "fail" for one in made)
    out.note(f"{len(made)} requests · {failed} failed", "")
    if failed:
        raise typer.Exit(1)
