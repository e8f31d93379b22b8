"""`lmtool conformance server` against real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from lmtool.measure.conformance.case import cases
from lmtool.trace.reader import TraceReader
from tests.net.access.knocking import KEY

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess


def test_our_server_passes(lmtool: Run, keyed: ServerProcess, tmp_path: Path) -> None:
    """Every case, of every grade, on a trained model that asks for a key; the reports say the same as the last line."""
    result = lmtool(
        "conformance",
        "server",
        keyed.url,
        "--api-key",
        KEY,
        "--junit",
        "j.xml",
        "--json",
        "r.json",
        "--markdown",
        "s.md",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    count = len(cases("server"))
    assert result.stdout.splitlines()[-1] == f"{count} cases · {count - 2} pass · 2 skipped"
    assert "the model has no chat template" in result.stdout
    assert "model stories260K" in result.stderr
    assert ET.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["summary"] == {"pass": count - 2, "skipped": 2}
    assert "| must |" in (tmp_path / "s.md").read_text()
    assert not (tmp_path / "report").exists()


def test_the_embedded_model_passes(lmtool: Run, embedded: str) -> None:
    """Text mode and the chat template, which the other model lacks; and what depends on a model's numbers."""
    words = [word for glob in ("TXT-*", "LOG-*", "SCO-*", "TOK-*", "INF-*") for word in ("--only", glob)]
    result = lmtool("conformance", "server", "--endpoint", embedded, *words)
    assert result.returncode == 0, result.stdout
    assert "skipped" not in result.stdout


def test_a_failure_is_kept_and_shown(lmtool: Run, served: str, tmp_path: Path) -> None:
    """A wrong eos fails its cases: status 1, the rule's words, and a command that opens the trace."""
    words = ("conformance", "server", served, "--eos", "7", "--only", "eos-is-sent-once", "--report", "kept")
    result = lmtool(*words)
    assert result.returncode == 1
    assert "TOK-3: The eos token is sent like any token" in result.stdout
    command = next(line.strip() for line in result.stdout.splitlines() if "lmtool inspect" in line)
    assert (
        "expected exactly one ending" in lmtool(*command.split()[1:]).stdout
        or "mark" in lmtool(*command.split()[1:]).stdout
    )
    assert TraceReader(tmp_path / "kept/server-eos-is-sent-once.lmtp.jsonl").header.covers[0] == "TOK-3"
    (tmp_path / "known").write_text("eos-is-sent-once  # the test says a wrong eos\n")
    known = lmtool(*words, "--known-failing", "known")
    assert known.returncode == 0
    assert known.stdout.startswith("known-failing eos-is-sent-once")
    stale = lmtool("conformance", "server", served, "--only", "eos-is-sent-once", "--known-failing", "known")
    assert stale.returncode == 1
    assert "passes: remove it" in stale.stdout


def test_listing_needs_no_server(lmtool: Run) -> None:
    """`--list` names cases with rules and grades; grade and globs choose."""
    listed = lmtool("conformance", "server", "--list", "--grade", "must", "--only", "SCO-*").stdout.splitlines()
    assert any(line.startswith("score ") and "SCO-1" in line for line in listed)
    assert all(" must " in line for line in listed)


def test_mistakes(lmtool: Run, tmp_path: Path) -> None:
    """Each ends with the documented status and says what to do."""
    (tmp_path / "known").write_text("no-such-case  # why\n")
    for words, status, message in (
        (("--grade", "perfect"), 2, "grades: must, compat, beyond"),
        (("--only", "nothing"), 2, "list all with --list"),
        (("--prompt", "1,2"), 2, "not a list of 4 token ids"),
        (("stdio:cat",), 2, "serve on a port"),
        (("--known-failing", "known"), 7, "which does not exist"),
        (("ws://127.0.0.1:1/",), 3, "no LMTP server at ws://127.0.0.1:1/"),
    ):
        result = lmtool("conformance", "server", *words)
        assert (result.returncode, message in result.stderr) == (status, True), result.stderr
