"""Reports for machines and for people."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from lmtool.trace.comparison import Comparison
from lmtool.trace.findings import Finding
from lmtool.trace.reports import REPORTS, summary
from lmtool.trace.verification import Case, Outcome

FINDING = Finding("fail", "ids", '1/"a"', 2, "expected <7> & |, got \x1b[1m")
OUTCOMES = [
    Outcome(Case("good", "mock"), "pass", seconds=0.25),
    Outcome(Case("bad", "drive"), "fail", "", (Comparison("1/1", "GENERATE", (FINDING,)),), 0.5, "r/bad", "bad"),
    Outcome(Case("other", "drive"), "skipped", "no server was named"),
    Outcome(Case("old", "drive"), "known-failing", "a defect", (Comparison("1/1", "GENERATE", (FINDING,)),)),
]


def test_junit() -> None:
    """One test case each, failures with their findings, whatever characters these have."""
    suite = ET.fromstring(REPORTS["junit.xml"](OUTCOMES))
    assert {n: suite.get(n) for n in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    good, bad, other, old = suite
    assert (good.get("name"), good.get("classname"), len(good)) == ("good", "mock", 0)
    assert bad[0].tag == "failure"
    assert "expected <7> & |, got \ufffd[1m" in (bad[0].text or "")
    assert other[0].get("message") == "no server was named"
    assert "a defect" in (old[0].text or "")


def test_json() -> None:
    """Counts, and every finding in its parts."""
    report = json.loads(REPORTS["report.json"](OUTCOMES))
    assert report["summary"] == {"pass": 1, "fail": 1, "skipped": 1, "known-failing": 1}
    assert report["cases"][1]["findings"] == [
        {"verdict": "fail", "level": "ids", "stream": '1/"a"', "token": 2, "message": FINDING.message}
    ]
    assert report["cases"][1]["actual"] == "r/bad"


def test_markdown() -> None:
    """A table of what is not a plain pass; a bar in a message does not break it."""
    text = REPORTS["report.md"](OUTCOMES)
    assert "| bad[drive] | fail |" in text
    assert "& \\|, got" in text
    assert "good" not in text
    assert summary(OUTCOMES) == "4 checks · 1 pass · 1 fail · 1 skipped · 1 known-failing"
