"""What both commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from lmtool.cli.conformance.reporting import Reports, choose, finish, known_of, tell
from lmtool.cli.invocation import Common
from lmtool.cli.output import Output
from lmtool.conformance.outcome import Known, Problem, judge
from lmtool.conformance.seen import Seen
from lmtool.errors import FileError, UsageError

NONE = Reports(None, None, None, Path("report"))


def test_choosing() -> None:
    """Grades with commas; nothing left is an error."""
    assert {case.grade for case in choose("server", "must, compat", None)} == {"must", "compat"}
    with pytest.raises(UsageError, match="no list of grades"):
        choose("server", "", None)
    with pytest.raises(UsageError, match="no client case fits GEN-99"):
        choose("client", "must", ["GEN-99"])
    assert known_of("client", None, None) == Known()


def test_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 where a case failed; a remark alone keeps no trace."""
    out, case = Output.of(Common()), choose("server", "must", None)[0]
    odd = tell(out, judge(case, [Problem("info", "look")], 0.0, Known()), Seen(), tmp_path / "a")
    assert odd.trace is None
    finish(out, [odd], NONE)
    failed = tell(out, judge(case, [Problem("fail", "wrong")], 0.0, Known()), Seen(), tmp_path / "a")
    assert failed.trace is not None
    assert failed.trace.exists()
    with pytest.raises(typer.Exit) as ended:
        finish(out, [odd, failed], NONE)
    assert ended.value.exit_code == 1
    assert "2 cases · 1 info · 1 fail" in capsys.readouterr().out


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    """It is a FileError."""
    with pytest.raises(FileError, match="cannot write"):
        finish(Output.of(Common()), [], Reports(tmp_path, None, None, tmp_path))
