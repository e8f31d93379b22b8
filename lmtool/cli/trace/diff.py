"""`lmtool trace diff`: two recordings of the same requests, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import TraceFile, read_recording
from lmtool.settings.option import option


def diff(
    common: Common,
    expected: TraceFile,
    actual: Annotated[Path, typer.Argument(metavar="OTHER", help="The trace to compare with it.")],
    level: Literal["shape", "ids", "numbers"] = option("numbers", "What must be equal."),
    tol_logprob: float = option(1e-3, "Largest difference between equal logprobs.", metavar="NATS", minimum=0),
    tie_eps: float = option(0.02, "Tokens whose logprobs differ by less may swap.", metavar="NATS", minimum=0),
    match: Literal["exact", "prompt", "order"] = option("exact", "How requests are paired."),
    ignore: list[str] | None = option(None, "A field that may differ; repeatable.", metavar="FIELD"),
    as_json: bool = option(False, "One JSON object a request.", flag="--json"),
) -> None:
    """Compare two traces stream by stream; status 1 where a check does not hold."""
    from itertools import chain

    from lmtool.trace.comparison import Tolerance, compare, compare_sessions

    out = common.output()
    ours, theirs = read_recording(out, expected), read_recording(out, actual)
    tolerance = Tolerance(tol_logprob, tie_eps, {**ours.words, **theirs.words})
    compared = compare(ours.exchanges, theirs.exchanges, level, tolerance, mode=match, ignore=ignore or ())
    number = failed = 0
    for one in chain(compared, compare_sessions(ours.session_events, theirs.session_events, level)):
        out.line(one.as_json() if as_json else str(one))
        number += 1
        failed += one.verdict == "fail"
    out.note(f"{number} requests · {failed} failed", "")
    if failed:
        raise typer.Exit(1)
