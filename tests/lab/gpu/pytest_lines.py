"""A pytest plugin that writes each test's outcome as a JSON line at once: what was known stays when the run is killed.

`-p tests.lab.gpu.pytest_lines`, with the file's path in the environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

VARIABLE = "LMTOOL_TEST_LINES"
DETAIL_LINES = 30


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called after each phase of a test."""
    if report.when != "call" and report.outcome == "passed":
        return
    _write({"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2), **_detail(report)})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Called after a file was collected."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "seconds": 0.0, **_detail(report)})


def _detail(report: Any) -> dict[str, Any]:  # either kind of report
    """Of a failed test the line that says why, and the end of its traceback; of a skipped one the reason."""
    if report.passed:
        return {}
    if report.skipped:
        longrepr = report.longrepr
        return {"why": str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)[:200]}
    lines = str(report.longreprtext).splitlines()
    why = next((line[1:].strip() for line in lines if line.startswith("E")), lines[-1] if lines else "")
    return {"why": why[:300], "traceback": lines[-DETAIL_LINES:]}


def _write(line: dict[str, Any]) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
