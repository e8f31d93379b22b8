"""Outcomes for other programs and for people."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from lmtool.conformance import reports
from lmtool.conformance.outcome import Known, Outcome, Problem, judge
from tests.conformance.test_outcome import CASE, FAIL, FAILING

OUTCOMES = [
    judge(CASE, [], 0.5, Known()),
    replace(judge(CASE, [Problem("fail", "a < b | \x1b")], 0.25, Known()), trace=Path("report/a.lmtp.jsonl")),
    judge(CASE, [FAIL], 0.0, FAILING),
    judge(CASE, [], 0.0, FAILING),
    Outcome(CASE, "skipped", reason="no eos"),
]


def test_junit() -> None:
    """Well-formed, whatever a server said; only what counts as failed is a failure."""
    suite = ET.fromstring(reports.junit(OUTCOMES))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "1")
    failures = [failure.get("message") for failure in suite.iter("failure")]
    assert failures[0] == "a < b | \ufffd"
    assert "remove it" in str(failures[1])
    assert {case.get("classname") for case in suite.iter("testcase")} == {"server.GEN-3"}
    assert [out.text for out in suite.iter("system-out")] == ["known-failing: wrong"]


def test_json() -> None:
    """Counts, and all that is known of each case."""
    report = json.loads(reports.as_json(OUTCOMES))
    assert report["summary"] == {"pass": 1, "skipped": 1, "known-failing": 1, "fixed": 1, "fail": 1}
    assert report["cases"][1]["trace"] == "report/a.lmtp.jsonl"
    assert report["cases"][2]["reason"] == "it is old"
    assert report["cases"][0]["grade"] == "compat"


def test_markdown() -> None:
    """Counts by grade, and a row for everything but a plain pass."""
    text = reports.markdown(OUTCOMES)
    assert "| compat | 1 | 4 |" in text
    assert "| a | GEN-3 | compat | fail | a < b \\| \x1b |" in text
    assert text.count("\n| a |") == 4


def test_lines() -> None:
    """A failure says what was wrong, the rule's own words, and how to open the trace."""
    assert reports.lines(OUTCOMES[0]) == ["pass          a  [GEN-3 · compat]"]
    told = reports.lines(OUTCOMES[1])
    assert told[0].startswith("fail ")
    assert told[2].startswith("    GEN-3: `max_tokens`")
    assert told[-1] == "    lmtool inspect report/a.lmtp.jsonl"
    assert "    it is old" in reports.lines(OUTCOMES[2])
    assert reports.summary(OUTCOMES) == "5 cases · 1 pass · 1 skipped · 1 known-failing · 1 fixed · 1 fail"
