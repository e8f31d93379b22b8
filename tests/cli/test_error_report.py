"""What a command raises, as a person reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.cli.common_options import Common
from lmtool.cli.error_report import report_bug, report_error
from lmtool.core.errors import ConnectError


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


@pytest.mark.parametrize("verb", ["show", "convert"])
def test_a_full_disk_below_stdout_is_no_bug(verb: str) -> None:
    """Status 7 and a sentence: what a command writes to stdout may be cut there."""
    trace = Path(__file__).parents[2] / "recordings/two_streams_interleaved.lmtp.jsonl"
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "lmtool", "trace", verb, str(trace)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 7
    assert result.stderr == "error: cannot write the output: No space left on device\n  what was written is cut\n"
