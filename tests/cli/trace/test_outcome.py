"""Comparisons as they are printed."""

from __future__ import annotations

import json

from lmtool.cli.trace.outcome import as_json, as_lines
from lmtool.trace.comparison import Comparison
from lmtool.trace.findings import Finding

ONE = Comparison("1/1", "GENERATE", (Finding("fail", "ids", "1/1", 2, "expected token 7, got 8"),))


def test_for_people() -> None:
    """The verdict and the request on one line, each finding on one below."""
    assert as_lines(ONE).split("\n") == [
        "fail       1/1     GENERATE",
        "    fail (ids) stream 1/1 token 2: expected token 7, got 8",
    ]


def test_for_programs() -> None:
    """The same as one JSON object."""
    finding = {"verdict": "fail", "level": "ids", "token": 2, "message": "expected token 7, got 8"}
    assert json.loads(as_json(ONE)) == {"stream": "1/1", "kind": "GENERATE", "verdict": "fail", "findings": [finding]}
