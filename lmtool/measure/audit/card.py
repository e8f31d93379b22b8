"""An audit's report: the card for a terminal, JSON, JUnit, and the traces that prove its breaches."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.measure.audit.checks import CHECKS, KIND, KIND_RULE
from lmtool.trace import outcomes
from lmtool.trace.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lmtool.measure.audit.auditing import AuditReport, WireReport
    from lmtool.measure.audit.evidence import Finding
    from lmtool.trace.outcomes import Verdict

RULES: Mapping[str, str] = {**{check.name: check.rule for check in CHECKS}, KIND: KIND_RULE}
STYLES = {"pass": "32", "breach": "1;31", "not offered": "2"}
"""Of verdicts, as SGR parameters."""
_VERDICTS: Mapping[str, Verdict] = {"pass": "pass", "breach": "fail", "not offered": "skipped"}
_NAME = max(map(len, RULES))
_INDENT = 2 + 13 + _NAME + 1
_NARROW = 76
"""Columns below which a finding stands under its check's name."""


@dataclass(frozen=True, slots=True)
class Line:
    """One check of one wire, as reports name it."""

    wire: str
    check: str

    @property
    def id(self) -> str:
        """Its name in reports and of its trace."""
        return f"{self.wire}-{self.check}"

    @property
    def label(self) -> str:
        """The same."""
        return self.id

    @property
    def junit_name(self) -> tuple[str, str]:
        """A case's class is its wire."""
        return self.wire, self.check

    def matches(self, pattern: str) -> bool:
        """True if a pattern is its name."""
        return self.id == pattern


def save_proofs(report: AuditReport, folder: Path) -> Mapping[str, Path]:
    """Write the trace of each breach into a folder; the files by `WIRE-CHECK`. Raises `FileError`."""
    files = {}
    for wire in report.wires:
        for name, finding in wire.findings.items():
            if finding.verdict != "breach":
                continue
            line = Line(wire.facts.name, name)
            path = folder / f"{line.id}.lmtp.jsonl"
            marks = (f"{line.id}: {finding.sentence}", f"expected: {RULES[name]}")
            report.log.write(path, f"{line.id}: {RULES[name]}", _kind(wire), marks, set(finding.exchanges))
            files[line.id] = path
    return files


def save_whole(report: AuditReport, path: Path) -> None:
    """Write everything that was said as one trace. Raises `FileError`."""
    kinds = {_kind(wire) for wire in report.wires}
    report.log.write(path, f"audit of {report.model} at {report.url}", next(iter(kinds)), ())


def _kind(wire: WireReport) -> str:
    return "websocket" if wire.facts.name == "lmtp" else "http"


def lines(report: AuditReport, proofs: Mapping[str, Path], columns: int) -> Iterator[tuple[str, str]]:
    """The card: texts and their styles, for a terminal of that many columns."""
    yield f"{report.model} at {report.url}", "1"
    for wire in report.wires:
        yield "", ""
        yield from _wrapped(_heading(wire), columns, 0, "1")
        for name in [one for one in RULES if one in wire.findings]:
            yield from _finding(name, wire.findings[name], columns)
            if (path := proofs.get(Line(wire.facts.name, name).id)) is not None:
                yield f"    lmtool inspect {path}", ""
    if any(wire.findings for wire in report.wires):
        yield "", ""
        yield from _wrapped(summary(report), columns, 0, "1;31" if report.breaches else "")


def _heading(wire: WireReport) -> str:
    if wire.reason:
        return f"{wire.facts.name}: not audited: {wire.reason}"
    spent = f"{wire.exchanges} requests in {wire.seconds:.1f} s"
    if wire.facts.no_logprobs:
        return f"{wire.facts.name}: no logprobs ({wire.facts.no_logprobs}), {spent}"
    names = "named by id" if wire.facts.names_ids else "named by text"
    return f"{wire.facts.name}: {wire.facts.width} alternatives, tokens {names}, {spent}"


def _finding(name: str, finding: Finding, columns: int) -> Iterator[tuple[str, str]]:
    head = f"  {finding.verdict:<12} {name:<{_NAME}} "
    style = STYLES[finding.verdict]
    text = finding.sentence if finding.verdict != "breach" else f"{finding.sentence}  [{RULES[name]}]"
    if columns < _NARROW:
        yield head.rstrip(), style
        yield from _wrapped(text, columns, 4, "")
        return
    rows = textwrap.wrap(text, columns - _INDENT, break_on_hyphens=False) or [""]
    yield f"{head}{rows[0]}", style
    yield from ((f"{'':{_INDENT}}{row}", style) for row in rows[1:])


def _wrapped(text: str, columns: int, indent: int, style: str) -> Iterator[tuple[str, str]]:
    rows = textwrap.wrap(text, max(20, columns - indent), break_on_hyphens=False)
    yield from ((f"{'':{indent}}{row}", style) for row in rows)


def summary(report: AuditReport) -> str:
    """One line: how many checks, and how many of each verdict."""
    verdicts = [one.verdict for wire in report.wires for one in wire.findings.values()]
    counts = [f"{verdicts.count(one)} {one}" for one in ("pass", "not offered", "breach") if one in verdicts]
    return " · ".join([f"{len(verdicts)} checks", *counts])


def as_json(report: AuditReport, proofs: Mapping[str, Path]) -> str:
    """The report as a JSON object."""
    wires = [
        {
            "wire": wire.facts.name,
            "audited": bool(wire.findings),
            "reason": wire.reason or None,
            "no_logprobs": wire.facts.no_logprobs or None,
            "alternatives": wire.facts.width,
            "tokens_named_by": "id" if wire.facts.names_ids else "text",
            "requests": wire.exchanges,
            "seconds": round(wire.seconds, 3),
            "checks": [_as_json(wire, name, finding, proofs) for name, finding in wire.findings.items()],
        }
        for wire in report.wires
    ]
    value = {"url": report.url, "model": report.model, "breaches": report.breaches, "wires": wires}
    return json.dumps(value, indent=1) + "\n"


def _as_json(wire: WireReport, name: str, finding: Finding, proofs: Mapping[str, Path]) -> dict[str, object]:
    path = proofs.get(Line(wire.facts.name, name).id)
    return {
        "name": name,
        "rule": RULES[name],
        "verdict": finding.verdict,
        "finding": finding.sentence,
        "off": finding.off,
        "measured": dict(finding.measured),
        "trace": None if path is None else str(path),
    }


def junit(report: AuditReport, proofs: Mapping[str, Path]) -> str:
    """The report as a JUnit file."""
    cases = []
    for wire in report.wires:
        share = wire.seconds / max(1, len(wire.findings))
        for name, finding in wire.findings.items():
            line = Line(wire.facts.name, name)
            path = proofs.get(line.id)
            messages: tuple[str, ...] = (finding.sentence, RULES[name])
            messages += () if path is None else (f"lmtool inspect {path}",)
            verdict = _VERDICTS[finding.verdict]
            passed = verdict == "pass"
            cases.append(
                Outcome(line, verdict, messages[:1] if passed or verdict == "skipped" else messages, seconds=share)
            )
    return outcomes.junit("lmtool audit", cases)
