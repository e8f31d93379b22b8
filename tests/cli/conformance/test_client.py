"""`lmtool conformance client` with our own client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lmtool.measure.conformance.case import cases

Run = Callable[..., subprocess.CompletedProcess[str]]
CHAT = (sys.executable, "-m", "lmtool", "chat", "-n", "3", "Hi")


def test_our_client_passes(lmtool: Run) -> None:
    """`lmtool chat` keeps every rule that clients have."""
    result = lmtool("conformance", "client", "--", *CHAT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{len(cases('client'))} cases · {len(cases('client'))} pass"


def test_a_client_that_does_nothing(lmtool: Run, tmp_path: Path) -> None:
    """A command that never connects fails, and its (empty) conversation is kept."""
    result = lmtool("conformance", "client", "--only", "connection-lost", "--", sys.executable, "-c", "pass")
    assert result.returncode == 1
    assert "it ended with status 0; expected a failure" in result.stdout
    assert "it sent no GENERATE" in result.stdout
    assert (tmp_path / "report/client-connection-lost.lmtp.jsonl").exists()


def test_output_that_differs_each_time(lmtool: Run) -> None:
    """It is told that output cannot be compared."""
    moody = "import os; print(os.getpid())"
    result = lmtool("conformance", "client", "--only", "path", "--", sys.executable, "-c", moody)
    assert "prints something else each time" in result.stderr


def test_listing_needs_no_client(lmtool: Run) -> None:
    """`--list` names the cases."""
    listed = lmtool("conformance", "client", "--list").stdout.splitlines()
    assert len(listed) == len(cases("client"))
    assert listed[0].startswith("plain-answer ")


def test_mistakes(lmtool: Run) -> None:
    """Each ends with the documented status and says what to do."""
    for words, status, message in (
        ((), 2, "no client to run"),
        (("--tokens", "1", "--", "true"), 2, "not a list of 3 token ids"),
        (("--", "no-such-program"), 8, "cannot start 'no-such-program'"),
    ):
        result = lmtool("conformance", "client", *words)
        assert (result.returncode, message in result.stderr) == (status, True), result.stderr
