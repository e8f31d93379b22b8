"""Outcomes of the suite for other programs and for people: JUnit XML, JSON, Markdown, and the lines of the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.conformance.outcome import counts
from lmtool.trace.junit import JUnitCase, Result
from lmtool.trace.junit import junit as suite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.conformance.outcome import Outcome


def junit(outcomes: Sequence[Outcome]) -> str:
    """A JUnit file of one suite; a case's class is its first rule."""
    return suite("lmtool conformance", [_junit_case(one) for one in outcomes])


def _junit_case(outcome: Outcome) -> JUnitCase:
    case, told = outcome.case, "\n".join(outcome.messages)
    result: Result = "failed" if outcome.bad else "skipped" if outcome.verdict == "skipped" else "passed"
    if result == "passed" and told:
        told = f"{outcome.verdict}: {told}"
    return JUnitCase(f"{case.role}.{case.rules[0]}", case.id, outcome.seconds, result, told)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """One object: counts, and each case with its rules, verdict and messages."""
    cases = [
        {
            "id": one.case.id,
            "role": one.case.role,
            "rules": one.case.rules,
            "grade": one.case.grade,
            "title": one.case.title,
            "rule": one.case.sentence,
            "verdict": one.verdict,
            "messages": one.messages,
            "reason": one.reason,
            "seconds": round(one.seconds, 3),
            "trace": None if one.trace is None else str(one.trace),
        }
        for one in outcomes
    ]
    return json.dumps({"summary": counts(outcomes), "cases": cases}, indent=1) + "\n"


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A summary for people: counts by grade, then what is not a plain pass."""
    lines = ["# LMTP conformance", "", summary(outcomes), "", "| grade | passed | of |", "|---|---|---|"]
    for grade in dict.fromkeys(one.case.grade for one in outcomes):
        ran = [one for one in outcomes if one.case.grade == grade and one.verdict != "skipped"]
        passed = sum(one.verdict in ("pass", "info", "non-strict") for one in ran)
        lines.append(f"| {grade} | {passed} | {len(ran)} |")
    notable = [one for one in outcomes if one.verdict != "pass"]
    if notable:
        lines += ["", "| case | rule | grade | verdict | what |", "|---|---|---|---|---|"]
        lines += [
            f"| {one.case.id} | {one.case.rules[0]} | {one.case.grade} | {one.verdict} | {_cell(one)} |"
            for one in notable
        ]
    return "\n".join([*lines, ""])


def _cell(outcome: Outcome) -> str:
    told = outcome.reason or (outcome.messages[0] if outcome.messages else "")
    return told.replace("|", "\\|").replace("\n", " ")


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many of each verdict, in one line."""
    found = counts(outcomes)
    return " · ".join([f"{len(outcomes)} cases", *(f"{count} {verdict}" for verdict, count in found.items())])


def lines(outcome: Outcome) -> list[str]:
    """An outcome for the terminal: a line, and below it what was wrong, the rule, and how to open the trace."""
    case = outcome.case
    told = [f"{outcome.verdict:<13} {case.id}  [{', '.join(case.rules)} · {case.grade}]"]
    if outcome.verdict == "pass":
        return told
    if outcome.verdict in ("known-failing", "known-flaky"):
        told.append(f"    {outcome.reason}")
    told += [f"    {message}" for message in outcome.messages]
    if outcome.bad:
        told.append(f"    {case.rules[0]}: {case.sentence}")
    if outcome.trace is not None:
        told.append(f"    lmtool inspect {outcome.trace}")
    return told
