"""`lmtool trace diff`: two recordings of the same requests, compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import TraceFile, read_exchanges

if TYPE_CHECKING:
    from lmtool.trace.comparison import Comparison


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
        out.line(_as_json(one) if as_json else _as_lines(one))
    failed = sum(one.verdict == "fail" for one in made)
    out.note(f"{len(made)} requests · {failed} failed", "")
    if failed:
        raise typer.Exit(1)


def _as_json(one: Comparison) -> str:
    import json

    findings = [
        {"verdict": f.verdict, "level": f.level, "token": f.position, "message": f.message} for f in one.findings
    ]
    return json.dumps({"stream": one.stream, "kind": one.kind, "verdict": one.verdict, "findings": findings})


def _as_lines(one: Comparison) -> str:
    return "\n".join([f"{one.verdict:<10} {one.stream:<7} {one.kind}", *(f"    {finding}" for finding in one.findings)])
