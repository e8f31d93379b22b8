"""Outcomes of a verification as JUnit XML, JSON and Markdown."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from lmtool.trace.junit import JUnitCase, Result
from lmtool.trace.junit import junit as suite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.trace.verification import Outcome


def junit(outcomes: Sequence[Outcome]) -> str:
    """A JUnit file of one suite; a case's class is its direction."""
    return suite("recordings", [_junit_case(one) for one in outcomes])


def _junit_case(outcome: Outcome) -> JUnitCase:
    told = "\n".join(filter(None, (outcome.reason, *outcome.findings)))
    result: Result = "failed" if outcome.failed else "skipped" if outcome.judgement == "skipped" else "passed"
    if result == "passed" and told:
        told = f"{outcome.judgement}: {told}"
    return JUnitCase(outcome.case.direction, outcome.case.name, outcome.seconds, result, told)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """One JSON object."""
    report = {"summary": Counter(one.judgement for one in outcomes), "cases": [_case(one) for one in outcomes]}
    return json.dumps(report, indent=1) + "\n"


def _case(outcome: Outcome) -> dict[str, object]:
    findings = [
        {
            "verdict": finding.verdict,
            "level": finding.level,
            "stream": finding.stream,
            "token": finding.position,
            "message": finding.message,
        }
        for comparison in outcome.comparisons
        for finding in comparison.findings
    ]
    return {
        "name": outcome.case.name,
        "direction": outcome.case.direction,
        "verdict": outcome.judgement,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "requests": len(outcome.comparisons),
        "findings": findings,
        "recording": outcome.recorded,
        "actual": outcome.actual,
    }


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A summary for people: counts, then what is not a plain pass."""
    lines = ["# Recordings", "", f"{summary(outcomes)}", ""]
    notable = [one for one in outcomes if one.judgement != "pass"]
    if notable:
        lines += ["| case | verdict | why |", "|---|---|---|"]
        lines += [f"| {one.case.id} | {one.judgement} | {_cell(one)} |" for one in notable]
    return "\n".join([*lines, ""])


def _cell(outcome: Outcome) -> str:
    told = outcome.reason or (outcome.findings[0] if outcome.findings else "")
    return told.replace("|", "\\|").replace("\n", " ")


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many of each judgement, in one line."""
    counts = Counter(one.judgement for one in outcomes)
    return " · ".join([f"{len(outcomes)} checks", *(f"{count} {name}" for name, count in counts.most_common())])


REPORTS: Mapping[str, Callable[[Sequence[Outcome]], str]] = {
    "junit.xml": junit,
    "report.json": as_json,
    "report.md": markdown,
}
"""File name and what is in it."""
