"""What both conformance commands share: choosing cases, telling outcomes, writing reports and traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.conformance.case import Case, Role
    from lmtool.conformance.outcome import Known, Outcome
    from lmtool.conformance.seen import Seen

REPORTS = "Reports"

GradeOption = Annotated[
    str, typer.Option("--grade", metavar="LIST", help="Rules to hold it to: must, compat, beyond; with commas.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="GLOB", help="Cases, or rules such as 'GEN-*'; repeatable.")
]
ListOption = Annotated[bool, typer.Option("--list", help="Name the cases, run none.")]
FailingOption = Annotated[
    Path | None,
    typer.Option("--known-failing", metavar="FILE", help="Cases that must fail: CASE  # reason, one a line."),
]
FlakyOption = Annotated[
    Path | None, typer.Option("--known-flaky", metavar="FILE", help="Cases that may fail, in the same form.")
]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit file.", rich_help_panel=REPORTS)
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write a JSON file.", rich_help_panel=REPORTS)
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write a summary.", rich_help_panel=REPORTS)
]
ReportOption = Annotated[
    Path,
    typer.Option("--report", metavar="FOLDER", help="Where traces of failing cases are kept.", rich_help_panel=REPORTS),
]
FOLDER = Path("report")


@dataclass(frozen=True, slots=True)
class Reports:
    """Where to write what."""

    junit: Path | None
    json: Path | None
    markdown: Path | None
    folder: Path


def choose(role: Role, grade: str, only: list[str] | None) -> list[Case]:
    """The cases to run. Raises `UsageError` for an unknown grade, or when none is left."""
    from lmtool.conformance.case import cases, chosen
    from lmtool.conformance.rules import GRADES
    from lmtool.errors import UsageError

    wanted = tuple(one.strip() for one in grade.split(",") if one.strip())
    grades = tuple(one for one in GRADES if one in wanted)
    if not wanted or len(grades) != len(set(wanted)):
        raise UsageError(f"--grade {grade} is no list of grades", f"the grades: {', '.join(GRADES)}")
    found = chosen(cases(role), grades, tuple(only or ()))
    if not found:
        raise UsageError(f"no {role} case fits {', '.join(only or ())}", "see all with --list")
    return found


def tell_list(out: Output, cases: list[Case]) -> None:
    """Print the cases: id, rules, grade, and what holds."""
    for case in cases:
        out.line(f"{case.id:<34} {', '.join(case.rules):<22} {case.grade:<7} {case.title}")


def known_of(role: Role, failing: Path | None, flaky: Path | None) -> Known:
    """What is known to fail. Raises `FileError` or `UsageError`."""
    from lmtool.conformance.case import cases
    from lmtool.conformance.outcome import read_known

    return read_known(failing, flaky, [case.id for case in cases(role)])


def tell(out: Output, outcome: Outcome, seen: Seen, folder: Path) -> Outcome:
    """Print an outcome; the trace of one that failed is kept first. Raises `FileError`."""
    from lmtool.conformance import reports
    from lmtool.conformance.keeping import keep

    if outcome.bad or (outcome.verdict in ("known-failing", "known-flaky", "non-strict") and outcome.problems):
        outcome = replace(outcome, trace=keep(folder, outcome, seen))
    for line in reports.lines(outcome):
        out.line(line)
    return outcome


def finish(out: Output, outcomes: list[Outcome], wanted: Reports) -> None:
    """Write the reports, sum up, and end with status 1 where a case failed. Raises `FileError`."""
    from lmtool.conformance import reports
    from lmtool.errors import FileError

    kinds = ((wanted.junit, reports.junit), (wanted.json, reports.as_json), (wanted.markdown, reports.markdown))
    for path, make in kinds:
        if path is not None:
            try:
                path.write_text(make(outcomes), encoding="utf-8")
            except OSError as error:
                raise FileError(f"cannot write {path}: {error.strerror}") from None
    out.line(reports.summary(outcomes))
    if any(outcome.bad for outcome in outcomes):
        raise typer.Exit(1)
