"""Outcomes of a verification as JUnit XML, JSON and Markdown."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lmtool.trace.verification import Outcome


def junit(outcomes: Sequence[Outcome]) -> str:
    """A JUnit file of one suite."""
    failures = sum(one.failed for one in outcomes)
    skipped = sum(one.judgement == "skipped" for one in outcomes)
    seconds = sum(one.seconds for one in outcomes)
    head = f'<testsuite name="recordings" tests="{len(outcomes)}" failures="{failures}" errors="0"'
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f'{head} skipped="{skipped}" time="{seconds:.3f}">']
    return "\n".join([*lines, *(line for one in outcomes for line in _testcase(one)), "</testsuite>", ""])


def _testcase(outcome: Outcome) -> Iterator[str]:
    case = outcome.case
    names = f"classname={_attribute(case.direction)} name={_attribute(case.name)}"
    yield f'  <testcase {names} time="{outcome.seconds:.3f}">'
    told = "\n".join(filter(None, (outcome.reason, *outcome.findings)))
    if outcome.failed:
        yield f"    <failure message={_attribute(told.split(chr(10))[0])}>{escape(_clean(told))}</failure>"
    elif outcome.judgement == "skipped":
        yield f"    <skipped message={_attribute(outcome.reason)}/>"
    elif told:
        yield f"    <system-out>{escape(_clean(f'{outcome.judgement}: {told}'))}</system-out>"
    yield "  </testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text)).replace("\n", "&#10;")


def _clean(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return "".join(one if one in "\t\n" or ord(one) >= 32 else "\ufffd" for one in text)


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
