"""The options of both conformance commands, and what they mean: cases, their outcomes, reports and traces."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.measure.conformance.case import Case, Role
    from lmtool.measure.conformance.transcript import Transcript
    from lmtool.settings.terminal import Output
    from lmtool.trace.outcomes import Outcome

REPORTS = "Reports"


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Which cases are run, which of them may fail, and where reports go."""

    grade: str = option(
        "must,compat,beyond", "Grades of rules to check: must, compat, beyond; with commas.", metavar="LIST"
    )
    only: tuple[str, ...] = option((), "Cases, or rules such as 'GEN-*'; repeatable.", metavar="GLOB")
    listing: bool = option(False, "Name the cases, run none.", flag="--list")
    known_failing: Path | None = option(None, "Cases that must fail: CASE  # reason, one a line.", metavar="FILE")
    known_flaky: Path | None = option(None, "Cases that may fail, in the same form.", metavar="FILE")
    junit: Path | None = option(None, "Write a JUnit file.", REPORTS, metavar="FILE")
    json: Path | None = option(None, "Write a JSON file.", REPORTS, metavar="FILE")
    markdown: Path | None = option(None, "Write a summary.", REPORTS, metavar="FILE")
    report: Path = option(Path("report"), "Where traces of failing cases are kept.", REPORTS, metavar="FOLDER")


def choose(role: Role, options: SuiteOptions) -> list[Case]:
    """The cases to run. Raises `UsageError` for an unknown grade, or when none is left."""
    from lmtool.core.errors import UsageError
    from lmtool.measure.conformance.case import cases, select
    from lmtool.measure.conformance.rules import GRADES

    names = tuple(one.strip() for one in options.grade.split(",") if one.strip())
    grades = tuple(one for one in GRADES if one in names)
    if not names or len(grades) != len(set(names)):
        raise UsageError(f"--grade {options.grade} is no list of grades", f"the grades: {', '.join(GRADES)}")
    selected = select(cases(role), grades, options.only)
    if not selected:
        raise UsageError(f"no {role} case fits {', '.join(options.only)}", "see all with --list")
    return selected


def show_list(out: Output, cases: list[Case]) -> None:
    """Print the cases: id, rules, grade, and what holds."""
    for case in cases:
        out.line(f"{case.id:<34} {', '.join(case.rules):<22} {case.grade:<7} {case.title}")


def show(out: Output, outcome: Outcome[Case], transcript: Transcript, folder: Path) -> Outcome[Case]:
    """Print an outcome; the trace of one that failed is saved first. Raises `FileError`."""
    from lmtool.measure.conformance import results

    if outcome.bad or (outcome.verdict in ("known-failing", "known-flaky", "non-strict") and outcome.messages):
        trace = results.save(folder, outcome.case, transcript, outcome.messages)
        outcome = replace(outcome, trace=str(trace))
    for line in results.lines(outcome):
        out.line(line)
    return outcome


def finish(out: Output, outcomes: list[Outcome[Case]], options: SuiteOptions) -> None:
    """Write the reports, sum up, and end with status 1 where a case failed. Raises `FileError`."""
    from lmtool.measure.conformance import results
    from lmtool.trace.writer import write_text

    for form, write in results.REPORTS.items():
        if (path := getattr(options, form)) is not None:
            write_text(path, write(outcomes))
    out.line(results.summary(outcomes))
    if any(outcome.bad for outcome in outcomes):
        raise typer.Exit(1)


def parse_ids(text: str, option: str, count: int, example: str) -> tuple[int, ...]:
    """Token ids with commas or spaces between. Raises `UsageError` if there are fewer than `count`."""
    from lmtool.core.errors import UsageError

    words = re.split(r"[\s,]+", text.strip())
    if len(words) < count or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{option} {text!r} is no list of {count} token ids", f"such as {option} {example}")
    return tuple(int(word) for word in words)
