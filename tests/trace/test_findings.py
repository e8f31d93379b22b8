"""Verdicts and their sentences."""

from __future__ import annotations

from lmtool.trace.findings import Finding, Verdict, worst


def test_the_worst_verdict_is_that_on_the_whole() -> None:
    """Nothing found is a pass; a failure outweighs everything."""
    verdicts: list[Verdict] = ["info", "tie", "non-strict", "fail"]
    found = [Finding(verdict, "ids", "1/1", None, "") for verdict in verdicts]
    assert worst([]) == "pass"
    assert worst(found[:1]) == "info"
    assert worst(found[:3]) == "tie"
    assert worst(found) == "fail"


def test_a_finding_names_its_place() -> None:
    """Verdict, level, stream and token, then what was expected and what came."""
    message = "expected token 5, got 6"
    assert str(Finding("fail", "ids", "1/3", 2, message)) == f"fail (ids) stream 1/3 token 2: {message}"
    assert str(Finding("info", "shape", "1/3", None, "x")) == "info (shape) stream 1/3: x"
