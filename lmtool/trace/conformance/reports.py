"""Outcomes of the suite for other programs and for people: JUnit XML, JSON, Markdown, and the lines of the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from lmtool.trace.conformance.outcome import counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.trace.conformance.outcome import Outcome


def junit(outcomes: Sequence[Outcome]) -> str:
    """A JUnit file of one suite; a case's class is its first rule."""
    bad, skipped = sum(one.bad for one in outcomes), sum(one.verdict == "skipped" for one in outcomes)
    seconds = sum(one.seconds for one in outcomes)
    head = f'<testsuite name="lmtool conformance" tests="{len(outcomes)}" failures="{bad}" errors="0"'
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f'{head} skipped="{skipped}" time="{seconds:.3f}">']
    return "\n".join([*lines, *(line for one in outcomes for line in _testcase(one)), "</testsuite>", ""])


def _testcase(outcome: Outcome) -> Iterator[str]:
    case, told = outcome.case, _clean("\n".join(outcome.messages))
    yield (
        f"  <testcase classname={quoteattr(f'{case.role}.{case.rules[0]}')} name={quoteattr(case.id)}"
        f' time="{outcome.seconds:.3f}">'
    )
    if outcome.bad:
        yield f"    <failure message={quoteattr(told.splitlines()[0])}>{escape(told)}</failure>"
    elif outcome.verdict == "skipped":
        yield f"    <skipped message={quoteattr(told)}/>"
    elif told:
        yield f"    <system-out>{escape(f'{outcome.verdict}: {told}')}</system-out>"
    yield "  </testcase>"


def _clean(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return "".join(one if one in "\t\n" or one >= " " else "\ufffd" for one in text)


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
        told.append(f"    lmtool trace show {outcome.trace}")
    return told
