"""`lmtool trace verify`: recordings as tests, in both directions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.cli.output import Output
    from lmtool.cli.trace.verifying import Plan
    from lmtool.trace.verification import Case, Known, Outcome


async def verify(
    common: Common,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Traces, and folders that hold some.")],
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="URL", help="A server to send recordings to; repeatable.")
    ] = None,
    serve: Annotated[
        list[str] | None,
        typer.Option("--serve", metavar="MODEL", help="Serve this model here and send them to it; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="GLOB", help="NAME, or NAME[drive]; repeatable.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name the checks, do none.")] = False,
    level: Annotated[
        Literal["shape", "ids", "numbers", "time"] | None,
        typer.Option("--level", help="How much must be equal.", show_default="as each recording says, or numbers"),
    ] = None,
    known_failing: Annotated[
        Path | None,
        typer.Option("--known-failing", metavar="FILE", help="Checks that must fail: PATTERN  # reason, one a line."),
    ] = None,
    known_flaky: Annotated[
        Path | None, typer.Option("--known-flaky", metavar="FILE", help="Checks that may fail, in the same form.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace recordings that the server no longer agrees with; not in CI.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FOLDER", help="Write junit.xml, report.json and report.md there."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Checks at once.")] = 1,
    patience: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0, help="Longest wait for what does not come.")
    ] = 60.0,
) -> None:
    """Check each recording twice: played to our client by the mock server, and sent to a real server.

    Status 1 where a check does not hold; then what came is kept beside the report.
    """
    import contextlib

    from lmtool.cli.output import Output
    from lmtool.cli.trace import verifying
    from lmtool.errors import UsageError
    from lmtool.trace.verification import Known, select

    out, found = Output.of(common), verifying.find(paths)
    chosen = select(_cases(found), only or ())
    if listing:
        for case in chosen:
            out.line(case.id)
        return
    if update and os.environ.get("CI"):
        raise UsageError("--update is refused in CI: recordings are replaced by people, who look at what changed")
    known = Known(_read_list(known_failing), _read_list(known_flaky))
    async with contextlib.AsyncExitStack() as servers:
        under_test = [await verifying.ask(url, common.api_key) for url in to or ()]
        under_test += [await servers.enter_async_context(verifying.started(model)) for model in serve or ()]
        plan = verifying.Plan(tuple(under_test), known, level, patience, report or Path("report"), update)
        cases = [(case, found[case.name]) for case in chosen]
        outcomes = await verifying.run(plan, cases, jobs, lambda one: _tell(out, one))
    _finish(out, outcomes, plan, known, written=report is not None)


def _cases(found: dict[str, Path]) -> list[Case]:
    from lmtool.trace.verification import DIRECTIONS, Case

    return [Case(name, direction) for name in found for direction in DIRECTIONS]


def _read_list(file: Path | None) -> tuple[tuple[str, str], ...]:
    from lmtool.errors import FileError
    from lmtool.trace.verification import read_list

    if file is None:
        return ()
    try:
        return read_list(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeError) as error:
        raise FileError(f"cannot read {file}: {error}") from None


def _tell(out: Output, outcome: Outcome) -> None:
    reason = f"  ({outcome.reason})" if outcome.reason else ""
    out.line(f"{outcome.judgement:<13} {outcome.case.id}{reason}")
    if outcome.judgement in ("pass", "skipped"):
        return
    findings = outcome.findings
    for finding in findings[:10]:
        out.line(f"    {finding}")
    if len(findings) > 10:
        out.line(f"    ... and {len(findings) - 10} more")
    if outcome.actual:
        out.line(f"    lmtool inspect {outcome.recorded} {outcome.actual}")
        out.line(f"    lmtool trace diff {outcome.recorded} {outcome.actual}")


def _finish(out: Output, outcomes: Sequence[Outcome], plan: Plan, known: Known, *, written: bool) -> None:
    from lmtool.errors import FileError
    from lmtool.trace.reports import REPORTS, summary

    if written:
        try:
            plan.report.mkdir(parents=True, exist_ok=True)
            for name, make in REPORTS.items():
                (plan.report / name).write_text(make(outcomes), encoding="utf-8")
        except OSError as error:
            raise FileError(f"cannot write into {plan.report}: {error.strerror}") from None
    out.note(summary(outcomes), "")
    for pattern, _ in known.failing:
        if not any(one.case.matches(pattern) for one in outcomes):
            out.warn(f"known-failing names {pattern}, which is no check here")
    if any(one.failed for one in outcomes):
        raise typer.Exit(1)
