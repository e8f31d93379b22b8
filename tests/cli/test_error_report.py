"""What a command raises, as a person reads it."""

from __future__ import annotations

import pytest

from lmtool.cli.common_options import Common
from lmtool.cli.error_report import report_bug, report_error
from lmtool.errors import ConnectError


def test_an_error_says_what_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    """One line what, one line each of what to do; no traceback."""
    report_error(ConnectError("no server at ws://x/", "start one:  lmtool serve"), Common(color="never"))
    assert capsys.readouterr().err == "error: no server at ws://x/\n  start one:  lmtool serve\n"


def test_a_bug_says_how_to_see_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is called a bug, and -vv shows its traceback."""
    monkeypatch.delenv("LMTOOL_DEBUG", raising=False)
    report_bug(KeyError("x"), Common())
    plain = capsys.readouterr().err
    assert "-vv" in plain
    assert "Traceback" not in plain
    report_bug(KeyError("x"), Common(verbose=2))
    assert "KeyError" in capsys.readouterr().err
