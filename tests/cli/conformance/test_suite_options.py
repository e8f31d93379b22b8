"""What both commands share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from lmtool.cli.conformance import SuiteOptions, choose, finish, show
from lmtool.core.errors import FileError, UsageError
from lmtool.measure.conformance.results import Problem, judge
from lmtool.measure.conformance.transcript import Transcript
from lmtool.settings.terminal import Output
from lmtool.trace.outcomes import KnownFailures

NONE = SuiteOptions()


def test_choosing() -> None:
    """Grades with commas; nothing left is an error."""
    assert {case.grade for case in choose("server", SuiteOptions("must, compat"))} == {"must", "compat"}
    with pytest.raises(UsageError, match="not a list of grades"):
        choose("server", SuiteOptions(""))
    with pytest.raises(UsageError, match="no client case matches GEN-99"):
        choose("client", SuiteOptions("must", ("GEN-99",)))


def test_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 where a case failed; a remark alone keeps no trace."""
    out, case = Output.of(), choose("server", NONE)[0]
    odd = show(out, judge(case, [Problem("info", "look")], 0.0, KnownFailures()), Transcript(), tmp_path / "a")
    assert odd.trace == ""
    finish(out, [odd], NONE)
    failed = show(out, judge(case, [Problem("fail", "wrong")], 0.0, KnownFailures()), Transcript(), tmp_path / "a")
    assert Path(failed.trace).is_file()
    with pytest.raises(typer.Exit) as ended:
        finish(out, [odd, failed], NONE)
    assert ended.value.exit_code == 1
    assert "2 cases · 1 info · 1 fail" in capsys.readouterr().out


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    """It is a FileError."""
    with pytest.raises(FileError, match="cannot write"):
        finish(Output.of(), [], SuiteOptions(junit=tmp_path))


def test_reports_are_written_whole(tmp_path: Path) -> None:
    """A report gets its name when it is complete: a link in its place is replaced, not followed."""
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "r.json").symlink_to("kept")
    finish(Output.of(), [], SuiteOptions(json=tmp_path / "r.json"))
    assert "cases" in json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "kept").read_text() == "mine"
