"""`lmtool audit` against our own servers: nothing is found on any wire."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run, StartServer


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    """Verdicts by wire and check, of a report in JSON."""
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        wire["wire"]: {one["name"]: one["verdict"] for one in wire["checks"]}
        for wire in json.loads(done.stdout)["wires"]
    }


def test_our_http_routes(lmtool: Run, embedded: str, tmp_path: Path) -> None:
    """Both routes of the included model; what is not offered is no surprise, and no trace of a breach is made.

    A link in the report's place is replaced, not followed.
    """
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "j.xml").symlink_to("kept")
    url = embedded.replace("ws://", "http://")
    found = verdicts(lmtool("audit", url, "--claim", "raw", "--json", "--junit", "j.xml", "--draws", "16"))
    skipped = {wire: {name for name, one in checks.items() if one != "pass"} for wire, checks in found.items()}
    assert skipped == {
        "completions": {"full_vocabulary", "logprobs_mode"},
        "chat": {"full_vocabulary", "logprobs_mode", "echo"},
    }
    assert ET.parse(tmp_path / "j.xml").getroot().get("failures") == "0"
    assert not (tmp_path / "report").exists()
    assert (tmp_path / "kept").read_text() == "mine"


def test_our_lmtp(lmtool: Run, embedded: str) -> None:
    """LMTP of the same model, as a card that fits into 60 columns and into a pipe."""
    done = lmtool("audit", embedded, "--draws", "16", COLUMNS="60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("pass · 5 not offered")


def test_a_model_without_weights(lmtool: Run, start_server: StartServer) -> None:
    """Of 64 tokens the whole vocabulary sums to 1; texts, which need others, are refused, and that is said."""
    with start_server("--backend", "random", "--backend-option", "vocab_size=64") as server:
        server.expect("ready in")
        found = verdicts(lmtool("audit", server.url, "--json", "--draws", "8"))["lmtp"]
        assert found["full_vocabulary"] == found["prompt_logprobs"] == found["concurrency"] == "pass"
        done = lmtool("audit", server.url.replace("ws://", "http://"))
    assert done.returncode == 4
    assert "not in the vocabulary" in " ".join(done.stdout.split())
    assert "sends no logprobs to audit" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--only", "sum"), 2, "unknown check 'sum'"),
        (("--prompt", "a", "--prompt", "b", "--prompt", "c", "--prompt", "d"), 2, "but at most 3 are used"),
        (("ftp://nowhere",), 2, "the scheme 'ftp' is unknown"),
        (("http://127.0.0.1:1/v1",), 3, "no server at http://127.0.0.1:1/v1"),
    ],
)
def test_mistakes(lmtool: Run, words: tuple[str, ...], status: int, message: str) -> None:
    """Each ends with the documented status and a sentence."""
    done = lmtool("audit", *words)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
