"""`lmtool trace diff`: two recordings of the same requests, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, read_events
from lmtool.option import option


def diff(
    common: Common,
    expected: TraceFile,
    actual: Annotated[Path, typer.Argument(metavar="OTHER", help="The trace to compare with it.")],
    level: Literal["shape", "ids", "numbers"] = option("numbers", "How much must be equal."),
    tol_logprob: float = option(1e-3, "Log-probabilities this near are equal.", metavar="NATS", minimum=0),
    tie_eps: float = option(0.02, "Tokens this near may change places.", metavar="NATS", minimum=0),
    match: Literal["exact", "prompt", "order"] = option("exact", "Which requests belong together."),
    ignore: list[str] | None = option(None, "A field that may differ; repeatable.", metavar="FIELD"),
    as_json: bool = option(False, "One JSON object a request.", flag="--json"),
) -> None:
    """Compare two traces stream by stream; status 1 where a check does not hold."""
    from lmtool.trace.comparison import compare, compare_sessions, with_words
    from lmtool.trace.diff import Tolerance
    from lmtool.trace.exchanges import exchanges

    out = common.output()
    (_, ours), (_, theirs) = read_events(out, expected), read_events(out, actual)
    tolerance = with_words(Tolerance(tol_logprob, tie_eps), (*ours, *theirs))
    comparisons = compare(exchanges(ours), exchanges(theirs), level, tolerance, mode=match, ignore=ignore or ())
    comparisons += compare_sessions(ours, theirs, level)
    for one in comparisons:
        out.line(one.as_json() if as_json else str(one))
    failed = sum(one.verdict == "fail" for one in comparisons)
    out.note(f"{len(comparisons)} requests · {failed} failed", "")
    if failed:
        raise typer.Exit(1)
